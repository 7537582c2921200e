// SPDX-License-Identifier: Apache-2.0

import java.util.Collection;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.hook.PutMessageHook;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * RocketMQ 5's own TimerMessageStore and ScheduleMessageService. One thread reads due messages and
 * one puts them, where a broker has three: so their order is decided. Settings: LOG_FILE_BYTES
 * QUEUE_FILE_BYTES IS_ASYNC, the level table, with commas for spaces, and TIMER_FILE_BYTES
 * WINDOW_SLOTS PRECISION_MS.
 */
public final class WheelWitness extends Witness {
    private BrokerController controller;

    public static void main(String[] args) {
        new WheelWitness().serve();
    }

    @Override
    void open(String[] words) throws Exception {
        MessageStoreConfig config = configOf(words);
        config.setMappedFileSizeTimerLog(Integer.parseInt(words[6]));
        config.setTimerRollWindowSlot(Integer.parseInt(words[7]));
        config.setTimerPrecisionMs(Integer.parseInt(words[8]));
        config.setTimerGetMessageThreadNum(1);
        config.setTimerPutMessageThreadNum(1);
        config.setTimerFlushIntervalMs(Integer.MAX_VALUE); // flushed only when told to, and once now
        controller = WheelEntrant.started(config);
        controller.getMessageStore().getPutMessageHookList().add(new WithoutTheRequest());
        saveOnlyWhenTold(controller.getScheduleMessageService(), "scheduledPersistService");
    }

    @Override
    Object put(String[] words) {
        MessageExtBrokerInner message = filled(new MessageExtBrokerInner(), words);
        if (words.length > 5) {
            message.setDeliverTimeMs(Long.parseLong(words[5]));
        }
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return controller.getMessageStore().putMessage(message).getPutMessageStatus();
    }

    /** Our stores do not keep what a producer asked for, once the broker's hook obeyed. */
    private static final class WithoutTheRequest implements PutMessageHook {
        @Override
        public String hookName() {
            return "without the request";
        }

        @Override
        public PutMessageResult executeBeforePutMessage(MessageExt message) {
            if (message.getProperties().remove(MessageConst.PROPERTY_TIMER_DELIVER_MS) != null) {
                ((MessageExtBrokerInner) message).setPropertiesString(
                    MessageDecoder.messageProperties2String(message.getProperties()));
            }
            return null;
        }
    }

    /** Each step is over for good when those before it are. */
    @Override
    void rest(int rounds) throws Exception {
        MessageStore store = controller.getMessageStore();
        TimerMessageStore timers = controller.getTimerMessageStore();
        long nowMs = SetClock.currentTimeMillis();
        long slotMs = nowMs - nowMs % timers.getPrecisionMs();
        waitUntil("queues", () -> store.dispatchBehindBytes() == 0);
        levelsLook(controller.getScheduleMessageService(), rounds);
        waitUntil("write time", () -> (long) field(timers, "currWriteTimeMs") >= slotMs);
        waitUntil("read time", () -> timers.getCommitReadTimeMs() >= slotMs);
        waitUntil("queues", () -> store.dispatchBehindBytes() == 0);
        long queued = store.getMaxOffsetInQueue(TimerMessageStore.TIMER_TOPIC, 0);
        waitUntil("timer queue", () -> timers.getQueueOffset() >= queued);
        waitUntil("units", () -> timers.getCommitQueueOffset() >= timers.getQueueOffset());
        for (String queue : new String[] {"enqueuePutQueue", "dequeueGetQueue", "dequeuePutQueue"}) {
            waitUntil(queue, () -> ((Collection<?>) field(timers, queue)).isEmpty());
        }
        waitUntil("queues", () -> store.dispatchBehindBytes() == 0);
    }

    @Override
    void flush() throws Exception {
        Object service = field(controller.getTimerMessageStore(), "timerFlushService");
        service.getClass().getMethod("flush").invoke(service);
        controller.getScheduleMessageService().persist();
    }

    @Override
    void close() throws Exception {
        WheelEntrant.stop(controller);
        // It would go on writing `transactionMetrics` into a store that is gone.
        ((ServiceThread) field(controller, "transactionMetricsFlushService")).shutdown();
    }
}
