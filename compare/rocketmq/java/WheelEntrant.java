// SPDX-License-Identifier: Apache-2.0

import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * RocketMQ 5's DefaultMessageStore with its TimerMessageStore. The broker's own controller puts the
 * store together, with the hook that makes a timer of a message; only the store and the wheel are
 * started, no part that speaks over a network.
 */
public final class WheelEntrant extends Entrant {
    public static void main(String[] args) {
        new WheelEntrant().enter(args);
    }

    @Override
    Engine open(Path directory) throws Exception {
        MessageStoreConfig config = configOf(directory);
        config.setTimerPrecisionMs(number("precisionMs"));
        config.setTimerMaxDelaySec((int) (millis("maxDelayMs") / 1_000));
        return new Wheel(started(config));
    }

    /** The stock broker's parts that keep and deliver messages, over a store of these settings. */
    static BrokerController started(MessageStoreConfig config) throws Exception {
        config.setTimerWheelEnable(true);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerIP1("127.0.0.1");
        broker.setNamesrvAddr(null); // whatever the environment says
        BrokerController controller = new BrokerController(
            broker, new NettyServerConfig(), new NettyClientConfig(), config);
        if (!controller.initialize()) {
            throw new IllegalStateException("the store does not load");
        }
        keepOffTheNetwork(controller.getMessageStore());
        controller.getMessageStore().start();
        controller.getTimerMessageStore().start();
        controller.changeScheduleServiceStatus(true);
        return controller;
    }

    static void stop(BrokerController controller) throws Exception {
        controller.changeScheduleServiceStatus(false);
        controller.getScheduledExecutorService().shutdownNow();
        controller.getTimerMessageStore().shutdown();
        controller.getMessageStore().shutdown();
    }

    /** A master listens for replicas, on every address. This one has none. */
    private static void keepOffTheNetwork(MessageStore store) throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField("haService");
        field.setAccessible(true);
        field.set(store, Proxy.newProxyInstance(
            HAService.class.getClassLoader(), new Class<?>[] {HAService.class},
            (proxy, method, arguments) -> {
                Class<?> answer = method.getReturnType();
                return answer == boolean.class ? Boolean.TRUE : answer == int.class ? 0 : null;
            }));
    }

    private final class Wheel implements Engine {
        private final BrokerController controller;
        private final MessageStore store;
        private final long precisionMs;

        private Wheel(BrokerController controller) {
            this.controller = controller;
            this.precisionMs = controller.getMessageStoreConfig().getTimerPrecisionMs();
            this.store = controller.getMessageStore();
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
            long deliverMs = level > 0 ? nowMs + delayMs : dueMs;
            message.setDeliverTimeMs(deliverMs);
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (result.getPutMessageStatus() == PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL) {
                return REFUSED;
            }
            if (!result.isOk()) {
                return failed(result.getPutMessageStatus());
            }
            long slotEndMs = -Math.floorDiv(-deliverMs, precisionMs) * precisionMs;
            // The store looks at the clock itself: what is due by then never goes to the wheel.
            boolean isOnWheel = TimerMessageStore.TIMER_TOPIC.equals(message.getTopic());
            return isOnWheel ? slotEndMs : Math.max(nowMs, deliverMs);
        }

        @Override
        public long held(String topic, int queueId) throws Exception {
            return store.getMaxOffsetInQueue(topic, queueId);
        }

        @Override
        public void stop() throws Exception {
            WheelEntrant.stop(controller);
        }
    }
}
