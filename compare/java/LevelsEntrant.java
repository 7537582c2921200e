// SPDX-License-Identifier: Apache-2.0

import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ 4.9's DefaultMessageStore with its ScheduleMessageService: eighteen levels. */
public final class LevelsEntrant extends Entrant {
    public static void main(String[] args) {
        new LevelsEntrant().enter(args);
    }

    @Override
    Engine open(Path directory) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setDiskMaxUsedSpaceRatio(99);
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("race", false), (t, q, o, c, s, b, p) -> { }, broker);
        keepOffTheNetwork(store);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        return new Levels(store);
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

    private static final class Levels implements Engine {
        private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
        private final DefaultMessageStore store;
        private final long[] delayMs;

        private Levels(DefaultMessageStore store) {
            this.store = store;
            Map<Integer, Long> table = store.getScheduleMessageService().getDelayLevelTable();
            delayMs = new long[table.size() + 1];
            table.forEach((level, delay) -> delayMs[level] = delay);
        }

        /** The shortest level that is long enough, as any caller has to choose it. */
        private int level(long leftMs) {
            int level = 1;
            while (level < delayMs.length - 1 && delayMs[level] < leftMs) {
                level++;
            }
            return level;
        }

        @Override
        public boolean put(Workload from, int number, byte[] body, long dueMs) {
            long nowMs = System.currentTimeMillis();
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(from.topic(number));
            message.setQueueId(from.queueId(number));
            message.setBody(body);
            message.setBornTimestamp(nowMs);
            message.setBornHost(HOST);
            message.setStoreHost(HOST);
            message.setWaitStoreMsgOK(false);
            if (!from.tags(number).isEmpty()) {
                message.setTags(from.tags(number));
                message.setTagsCode(
                    MessageExtBrokerInner.tagsString2tagsCode(null, from.tags(number)));
            }
            if (!from.keys(number).isEmpty()) {
                message.setKeys(from.keys(number));
            }
            MessageAccessor.putProperty(
                message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueKey(number));
            if (dueMs > nowMs) {
                message.setDelayTimeLevel(level(dueMs - nowMs));
            }
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            return store.putMessage(message).isOk();
        }

        @Override
        public long delivered(String topic, int queueId) {
            return store.getMaxOffsetInQueue(topic, queueId);
        }

        @Override
        public void stop() {
            store.shutdown();
        }
    }
}
