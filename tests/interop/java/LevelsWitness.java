// SPDX-License-Identifier: Apache-2.0

import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.schedule.ScheduleMessageService;

/**
 * RocketMQ 4.9's own ScheduleMessageService. Its settings: LOG_FILE_BYTES QUEUE_FILE_BYTES
 * IS_ASYNC, and the level table, with commas for spaces.
 */
public final class LevelsWitness extends Witness {
    private DefaultMessageStore store;

    public static void main(String[] args) {
        new LevelsWitness().serve();
    }

    @Override
    void open(String[] words) throws Exception {
        MessageStoreConfig config = configOf(words);
        store = LevelsEntrant.started(config);
        saveOnlyWhenTold(service(), "deliverExecutorService");
    }

    @Override
    Object put(String[] words) {
        MessageExtBrokerInner message = filled(new MessageExtBrokerInner(), words);
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return store.putMessage(message).getPutMessageStatus();
    }

    @Override
    void rest(int rounds) throws Exception {
        waitUntil("queues", () -> store.dispatchBehindBytes() == 0);
        levelsLook(service(), rounds);
        waitUntil("queues", () -> store.dispatchBehindBytes() == 0);
    }

    @Override
    void flush() {
        service().persist();
    }

    @Override
    void close() {
        store.shutdown();
    }

    private ScheduleMessageService service() {
        return store.getScheduleMessageService();
    }
}
