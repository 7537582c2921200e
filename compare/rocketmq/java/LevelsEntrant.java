// SPDX-License-Identifier: Apache-2.0

import java.lang.reflect.Field;
import java.nio.file.Path;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.schedule.ScheduleMessageService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ 4.9's DefaultMessageStore with its ScheduleMessageService: eighteen levels. */
public final class LevelsEntrant extends Entrant {
    public static void main(String[] args) {
        new LevelsEntrant().enter(args);
    }

    @Override
    Engine open(Path directory) throws Exception {
        MessageStoreConfig config = configOf(directory);
        if (text("levelTable") != null) {
            config.setMessageDelayLevel(text("levelTable"));
        }
        return new Levels(started(config));
    }

    /** The stock store of these settings, which delivers. */
    static DefaultMessageStore started(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("race", false),
            (topic, queueId, offset, tagsCode, storedMs, bits, properties) -> { },
            new BrokerConfig());
        keepOffTheNetwork(store);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        return store;
    }

    /** A master listens for replicas, on every address. This one has none. */
    private static void keepOffTheNetwork(DefaultMessageStore store) throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField("haService");
        field.setAccessible(true);
        field.set(store, new HAService(store) {
            @Override
            public void start() { }

            @Override
            public void shutdown() { }
        });
    }

    private final class Levels implements Engine {
        private final DefaultMessageStore store;
        private final long[] delaysMs;

        private Levels(DefaultMessageStore store) {
            this.store = store;
            ScheduleMessageService service = store.getScheduleMessageService();
            delaysMs = new long[service.getMaxDelayLevel() + 1];
            for (int level = 1; level < delaysMs.length; level++) {
                delaysMs[level] = service.computeDeliverTimestamp(level, 0);
            }
        }

        /** The shortest that is long enough; 0 where none is needed, one too many if none is. */
        private int level(long leftMs) {
            int level = leftMs > 0 ? 1 : 0;
            while (level < delaysMs.length && delaysMs[level] < leftMs) {
                level++;
            }
            return level;
        }

        @Override
        public Object prepare(String topic, int queueId, byte[] body) {
            return filled(new MessageExtBrokerInner(), topic, queueId, body);
        }

        @Override
        public long put(Object prepared, long dueMs, int level, long delayMs) {
            MessageExtBrokerInner message = (MessageExtBrokerInner) prepared;
            long nowMs = System.currentTimeMillis();
            message.setBornTimestamp(nowMs);
            int chosen = level > 0 ? level : level(dueMs - nowMs);
            if (chosen == delaysMs.length) {
                return REFUSED;
            }
            if (chosen > 0) {
                message.setDelayTimeLevel(chosen);
            }
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                return failed(result.getPutMessageStatus());
            }
            return result.getAppendMessageResult().getStoreTimestamp() + delaysMs[chosen];
        }

        @Override
        public long held(String topic, int queueId) {
            return store.getMaxOffsetInQueue(topic, queueId);
        }

        @Override
        public void stop() {
            store.shutdown();
        }
    }
}
