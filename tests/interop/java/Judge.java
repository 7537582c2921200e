// SPDX-License-Identifier: Apache-2.0

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedWriter;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * The official client library as the judge: what it really sent, received, recalled or read, as
 * JSON lines. One source for every RocketMQ version: it uses only what 4.9 and 5.x have in common.
 *
 * <p>Usage: Judge COMMAND key=value ... where COMMAND is send, consume, recall or read. Files are
 * UTF-8 JSON lines. Every command ends by itself: when it is done, at deadlineMs after its start, or
 * when its standard input closes (the harness holds the other end).
 */
public final class Judge {
    private static final int PULL_MESSAGE = 11;
    private static final int SUBSCRIPTION_IN_REQUEST = 4;
    private static final int EXIT_FAILED = 1;
    private static final int EXIT_DEADLINE = 3;

    private final Map<String, String> options;

    private Judge(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        Judge judge = new Judge(options);
        judge.endWithTheHarness();
        int exitCode = EXIT_FAILED;
        try {
            judge.run(args[0]);
            exitCode = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        // Client threads that are not daemons must not keep a finished judge alive.
        Runtime.getRuntime().halt(exitCode);
    }

    private void run(String command) throws Exception {
        switch (command) {
            case "send": send(); break;
            case "consume": consume(); break;
            case "recall": recall(); break;
            case "read": read(); break;
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private String text(String key) {
        String value = options.get(key);
        if (value == null) {
            throw new IllegalArgumentException("missing option " + key);
        }
        return value;
    }

    private long number(String key, long otherwise) {
        String value = options.get(key);
        return value == null ? otherwise : Long.parseLong(value);
    }

    /** The default of 3 s for an answer is too little on a machine that is busy with brokers. */
    private void prepare(ClientConfig client) {
        client.setNamesrvAddr(text("namesrv"));
        client.setVipChannelEnabled(false);
        client.setMqClientApiTimeout(30_000);
    }

    /** No judge outlives its deadline or the process that started it. */
    private void endWithTheHarness() {
        long deadlineMs = number("deadlineMs", 120_000);
        Thread clock = new Thread(() -> {
            sleep(deadlineMs + 30_000);
            Runtime.getRuntime().halt(EXIT_DEADLINE);
        });
        Thread parent = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (IOException closed) {
                // Ends below.
            }
            Runtime.getRuntime().halt(EXIT_DEADLINE);
        });
        clock.setDaemon(true);
        parent.setDaemon(true);
        clock.start();
        parent.start();
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    // ---------------------------------------------------------------- send

    /** Sends every line of "workload" and writes to "out" what became of each. */
    private void send() throws Exception {
        List<String> lines = Files.readAllLines(Paths.get(text("workload")), StandardCharsets.UTF_8);
        int threads = (int) number("threads", 4);
        TransactionMQProducer producer = new TransactionMQProducer("judge_producer");
        prepare(producer);
        producer.setSendMsgTimeout(10_000);
        // A retried send may be stored twice: what failed is reported, not repeated.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setTransactionListener(new OutcomeOfTheWorkload());
        producer.start();
        try (Lines out = new Lines(text("out"))) {
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            for (int i = 0; i < threads; i++) {
                int first = i;
                pool.execute(() -> {
                    for (int n = first; n < lines.size(); n += threads) {
                        out.write(sendOne(producer, JSON.parseObject(lines.get(n))));
                    }
                });
            }
            pool.shutdown();
            pool.awaitTermination(number("deadlineMs", 120_000), TimeUnit.MILLISECONDS);
            // A last transaction outcome is sent one way: give it the time to leave.
            sleep(number("lingerMs", 500));
        }
        producer.shutdown();
    }

    private static JSONObject sendOne(TransactionMQProducer producer, JSONObject spec) {
        JSONObject line = new JSONObject(true);
        line.put("n", spec.get("n"));
        Message message = messageOf(spec);
        try {
            line.put("sendTime", System.currentTimeMillis());
            SendResult result = spec.containsKey("transaction")
                ? producer.sendMessageInTransaction(message, spec.getString("transaction"))
                : producer.send(message);
            line.put("ackTime", System.currentTimeMillis());
            line.put("status", result.getSendStatus().name());
            line.put("uniqKey", result.getMsgId());
            line.put("queueId", result.getMessageQueue().getQueueId());
            line.put("queueOffset", result.getQueueOffset());
            String handle = recallHandle(result);
            if (handle != null) {
                line.put("recallHandle", handle);
            }
        } catch (Exception refused) {
            // It may be stored all the same: its key tells.
            line.put("status", "FAILED");
            line.put("uniqKey", message.getProperty("UNIQ_KEY"));
            line.put("error", refused.toString());
        }
        return line;
    }

    private static Message messageOf(JSONObject spec) {
        byte[] body = Base64.getDecoder().decode(spec.getString("body"));
        Message message = new Message(spec.getString("topic"), body);
        if (spec.getString("tags") != null) {
            message.setTags(spec.getString("tags"));
        }
        JSONArray keys = spec.getJSONArray("keys");
        if (keys != null && !keys.isEmpty()) {
            message.setKeys(keys.toJavaList(String.class));
        }
        JSONObject properties = spec.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        if (spec.containsKey("delayLevel")) {
            message.setDelayTimeLevel(spec.getIntValue("delayLevel"));
        }
        // What 5.x clients' setDeliverTimeMs, setDelayTimeMs and setDelayTimeSec write.
        putTimer(message, "TIMER_DELIVER_MS", spec.getLong("deliverMs"));
        putTimer(message, "TIMER_DELAY_MS", spec.getLong("delayMs"));
        putTimer(message, "TIMER_DELAY_SEC", spec.getLong("delaySec"));
        return message;
    }

    private static void putTimer(Message message, String name, Long value) {
        if (value != null) {
            MessageAccessor.putProperty(message, name, String.valueOf(value));
        }
    }

    /** Clients before 5.3.2 know no recall handle. */
    private static String recallHandle(SendResult result) throws ReflectiveOperationException {
        try {
            return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException older) {
            return null;
        }
    }

    private static final class OutcomeOfTheWorkload implements TransactionListener {
        private final Map<String, LocalTransactionState> outcomes =
            java.util.Collections.synchronizedMap(new HashMap<>());

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
            LocalTransactionState state = "commit".equals(outcome)
                ? LocalTransactionState.COMMIT_MESSAGE
                : "rollback".equals(outcome)
                    ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            outcomes.put(message.getTransactionId(), state);
            return state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return outcomes.getOrDefault(message.getTransactionId(), LocalTransactionState.UNKNOW);
        }
    }

    // ---------------------------------------------------------------- recall

    /** Recalls every {n, topic, recallHandle} of "workload"; 5.3.2 and newer. */
    private void recall() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("judge_recall");
        prepare(producer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Method recall =
            DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        List<String> lines = Files.readAllLines(Paths.get(text("workload")), StandardCharsets.UTF_8);
        try (Lines out = new Lines(text("out"))) {
            for (String each : lines) {
                JSONObject spec = JSON.parseObject(each);
                JSONObject line = new JSONObject(true);
                line.put("n", spec.get("n"));
                line.put("recalled", false);
                try {
                    recall.invoke(producer, spec.getString("topic"), spec.getString("recallHandle"));
                    line.put("recalled", true);
                } catch (ReflectiveOperationException refused) {
                    line.put("error", String.valueOf(refused.getCause()));
                }
                out.write(line);
            }
        }
        producer.shutdown();
    }

    // ---------------------------------------------------------------- consume

    /**
     * Writes every delivery of "topics" to "out" until "expect" different messages came (and
     * settleMs more passed, for what must not come) or until the deadline. A message whose
     * hash falls to one in "returnOneIn" is returned once for a retry. Messages behind the first
     * "holdAfter" stay in the hands of their threads, for a kill to strike.
     */
    private void consume() throws Exception {
        long startMs = System.currentTimeMillis();
        long expect = number("expect", Long.MAX_VALUE);
        long returnOneIn = number("returnOneIn", 0);
        long holdAfter = number("holdAfter", Long.MAX_VALUE);
        AtomicLong taken = new AtomicLong();
        Set<String> places = new HashSet<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(text("group"));
        prepare(consumer);
        // A message that is being returned when the consumer is told to end is still returned.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        consumer.setPollNameServerInterval(1_000);
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.setPullBatchSize(64);
        consumer.setPersistConsumerOffsetInterval(1_000);
        // A returned message returns its whole batch.
        consumer.setConsumeMessageBatchMaxSize(returnOneIn > 0 ? 1 : 32);
        consumer.setConsumeFromWhere("last".equals(options.get("from"))
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (String topic : text("topics").split(",")) {
            consumer.subscribe(topic, "*");
        }
        try (Lines out = new Lines(text("out"))) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean back = false;
                if (taken.addAndGet(messages.size()) > holdAfter) {
                    sleep(number("deadlineMs", 120_000));
                }
                for (MessageExt message : messages) {
                    JSONObject line = received(message);
                    String key = line.getString("uniqKey");
                    back = returnOneIn > 0 && message.getReconsumeTimes() == 0
                        && Math.floorMod(String.valueOf(key).hashCode(), returnOneIn) == 0;
                    line.put("returned", back);
                    out.write(line);
                    synchronized (places) {
                        // A retry comes under its old topic, but stands in another queue.
                        places.add(message.getTopic() + " " + (message.getReconsumeTimes() > 0)
                            + " " + message.getQueueId() + " " + message.getQueueOffset());
                    }
                }
                return back ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Files.createFile(Paths.get(text("out") + ".started"));
            waitForDeliveries(places, expect, startMs + number("deadlineMs", 120_000));
            consumer.shutdown();
        }
    }

    private void waitForDeliveries(Set<String> places, long expect, long deadlineMs) {
        Path stopWhenThere = Paths.get(text("out") + ".stop");
        while (System.currentTimeMillis() < deadlineMs && !Files.exists(stopWhenThere)) {
            synchronized (places) {
                if (places.size() >= expect) {
                    break;
                }
            }
            sleep(100);
        }
        sleep(number("settleMs", 1_000));
    }

    // ---------------------------------------------------------------- read

    /**
     * Reads whole queues straight from the broker at "broker", by PULL_MESSAGE: also from a
     * slave and from system topics, which consumers cannot. "queues" is a file of
     * {topic, queueId} lines.
     */
    private void read() throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        List<String> lines = Files.readAllLines(Paths.get(text("queues")), StandardCharsets.UTF_8);
        try (Lines out = new Lines(text("out"))) {
            for (String each : lines) {
                JSONObject queue = JSON.parseObject(each);
                readQueue(client, queue.getString("topic"), queue.getIntValue("queueId"), out);
            }
        }
        client.shutdown();
    }

    private void readQueue(NettyRemotingClient client, String topic, int queueId, Lines out)
        throws Exception {
        long offset = 0;
        while (true) {
            RemotingCommand answer =
                client.invokeSync(text("broker"), pull(topic, queueId, offset), 30_000);
            Map<String, String> fields = answer.getExtFields();
            if (fields == null || fields.get("nextBeginOffset") == null) {
                throw new IllegalStateException(topic + "/" + queueId + " at " + offset + ": code "
                    + answer.getCode() + " " + answer.getRemark());
            }
            long next = Long.parseLong(fields.get("nextBeginOffset"));
            if (answer.getCode() == 0 && answer.getBody() != null) {
                for (MessageExt message : MessageDecoder.decodes(ByteBuffer.wrap(answer.getBody()))) {
                    JSONObject line = received(message);
                    line.put("sysFlag", message.getSysFlag());
                    line.put("commitLogOffset", message.getCommitLogOffset());
                    out.write(line);
                    next = Math.max(next, message.getQueueOffset() + 1);
                }
            }
            if (next <= offset && Long.parseLong(fields.get("maxOffset")) <= offset) {
                return;
            }
            offset = next > offset ? next : offset + 1;
        }
    }

    private static RemotingCommand pull(String topic, int queueId, long offset) {
        RemotingCommand request = RemotingCommand.createRequestCommand(PULL_MESSAGE, null);
        HashMap<String, String> fields = new HashMap<>();
        fields.put("consumerGroup", "judge_reader");
        fields.put("topic", topic);
        fields.put("queueId", String.valueOf(queueId));
        fields.put("queueOffset", String.valueOf(offset));
        fields.put("maxMsgNums", "128");
        fields.put("sysFlag", String.valueOf(SUBSCRIPTION_IN_REQUEST));
        fields.put("commitOffset", "0");
        fields.put("suspendTimeoutMillis", "0");
        fields.put("subscription", "*");
        fields.put("subVersion", "0");
        fields.put("expressionType", "TAG");
        request.setExtFields(fields);
        return request;
    }

    // ---------------------------------------------------------------- lines

    private static JSONObject received(MessageExt message) {
        JSONObject line = new JSONObject(true);
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("uniqKey", message.getProperty("UNIQ_KEY"));
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("bodySha1", sha1(message.getBody()));
        line.put("bodyLength", message.getBody() == null ? 0 : message.getBody().length);
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("receiveTime", System.currentTimeMillis());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("properties", new TreeMap<>(message.getProperties()));
        return line;
    }

    private static String sha1(byte[] body) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-1").digest(body == null ? new byte[0] : body);
            StringBuilder hex = new StringBuilder();
            for (byte each : digest) {
                hex.append(String.format("%02x", each));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** A file of JSON lines, whole lines only, for several threads. */
    private static final class Lines implements AutoCloseable {
        private final BufferedWriter writer;

        Lines(String path) throws IOException {
            writer = Files.newBufferedWriter(Paths.get(path), StandardCharsets.UTF_8);
        }

        synchronized void write(JSONObject line) {
            try {
                writer.write(line.toString(
                    com.alibaba.fastjson.serializer.SerializerFeature.WriteMapNullValue));
                writer.write('\n');
                writer.flush();
            } catch (IOException full) {
                throw new java.io.UncheckedIOException(full);
            }
        }

        @Override
        public synchronized void close() throws IOException {
            writer.close();
        }
    }
}
