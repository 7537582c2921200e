// SPDX-License-Identifier: Apache-2.0

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.ZipFile;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * One of RocketMQ's own engines in a race: puts the messages of a workload into the stock store
 * with one thread, lets the store deliver them, stops it, and leaves the store and a few numbers
 * behind. When each was delivered is read from the store's files by whoever started this.
 *
 * <p>Usage: java LevelsEntrant|WheelEntrant key=value ... with the paths workload, store, scratch,
 * out and promises (int64, big-endian, a message each), and the numbers afterMs (how long after the
 * last due time it gives up), warmup (how many messages go through another store first), deadlineMs
 * (for everything) and what the engine takes. It listens on no port. It ends when all is delivered,
 * at the deadline, or when its standard input closes.
 */
abstract class Entrant {
    private static final int WARMUP_DELAY_MS = 1_500;
    private static final int WARMUP_PATIENCE_MS = 30_000;
    private static final int LEAD_MS = 300;
    private static final int LOOK_EVERY_MS = 10;
    private static final int TELL_EVERY_MS = 200;
    private static final int GAVE_UP = 3;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    /** Instead of a promise: it is due later than the engine can keep. */
    static final long REFUSED = -1;

    /** Instead of a promise: the store did not take it, for another reason. */
    static final long FAILED = -2;

    private final Map<String, String> options = new HashMap<>();
    private final Map<String, Integer> failures = new TreeMap<>();
    private long toldMs;

    /** One engine over one directory. */
    interface Engine {
        /** What is put later: what a producer and the network do before a store sees a message. */
        Object prepare(String topic, int queueId, byte[] body);

        /**
         * Put it, for a time or, where level is not 0, for a level; return the time that the store
         * can keep, or REFUSED.
         */
        long put(Object prepared, long dueMs, int level, long delayMs);

        /** How many messages a queue of a real topic holds. */
        long held(String topic, int queueId) throws Exception;

        void stop() throws Exception;
    }

    abstract Engine open(Path directory) throws Exception;

    /** The stock settings, for a store that lies there. */
    static MessageStoreConfig configOf(Path directory) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setDiskMaxUsedSpaceRatio(99);
        return config;
    }

    /** A message as it comes off the network; its class has another place in each version. */
    static <M extends MessageExt> M filled(M message, String topic, int queueId, byte[] body) {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        message.setWaitStoreMsgOK(true);
        MessageClientIDSetter.setUniqID(message);
        return message;
    }

    final void enter(String[] given) {
        for (String pair : given) {
            int equals = pair.indexOf('=');
            options.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        endWithTheParent();
        int exitCode = 1;
        try {
            race();
            exitCode = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        // Threads of a stock store that are not daemons must not keep this process alive.
        Runtime.getRuntime().halt(exitCode);
    }

    final Path path(String name) {
        return Paths.get(options.get(name));
    }

    final int number(String name) {
        return Integer.parseInt(options.get(name));
    }

    /** Milliseconds: 25 days are more than an int holds. */
    final long millis(String name) {
        return Long.parseLong(options.get(name));
    }

    /** An option that may be missing, or null. */
    final String text(String name) {
        return options.get(name);
    }

    private void race() throws Exception {
        if (number("warmup") > 0) {
            // Left where it is: a stopped broker's timers may still write their configuration.
            Path directory = path("scratch").resolve("warmup");
            run(Workload.warmup(number("warmup")), directory, WARMUP_PATIENCE_MS, false);
            System.gc();
        }
        Workload workload = Workload.read(path("workload"));
        Run run = run(workload, path("store"), millis("afterMs"), true);
        Files.write(path("promises"), run.promisedMs.array());
        Files.write(path("out"), run.toJson(failures).getBytes(StandardCharsets.UTF_8));
    }

    /** Note with which status a put failed. */
    final long failed(Object status) {
        failures.merge(String.valueOf(status), 1, Integer::sum);
        return FAILED;
    }

    private Run run(Workload given, Path directory, long afterMs, boolean isTold)
            throws Exception {
        failures.clear();
        Engine engine = open(directory);
        Run run = new Run();
        run.promisedMs = ByteBuffer.allocate(Long.BYTES * given.count);
        run.startMs = System.currentTimeMillis() + LEAD_MS;
        if (isTold) {
            tell("start", run.startMs);
        }
        while (System.currentTimeMillis() < run.startMs) {
            LockSupport.parkNanos(100_000);
        }
        long startNs = System.nanoTime();
        long startCpuNs = cpuNs();
        for (int number = 0; number < given.count; number++) {
            String topic = given.topics[given.topic[number]];
            int queueId = number / given.topics.length % Workload.QUEUES;
            Object prepared = engine.prepare(topic, queueId, given.body(number));
            waitUntil(startNs + given.arrivalMs[number] * 1_000_000);
            long dueMs = run.startMs + given.dueMs[number];
            long delayMs = given.dueMs[number] - given.arrivalMs[number];
            long before = System.nanoTime();
            long promisedMs = engine.put(prepared, dueMs, given.level[number], delayMs);
            long took = System.nanoTime() - before;
            run.putNs += took;
            run.longestPutNs = Math.max(run.longestPutNs, took);
            run.promisedMs.putLong(promisedMs < 0 ? REFUSED : promisedMs);
            run.refusals += promisedMs < 0 ? 1 : 0;
            if (isTold && (number & 0x3ff) == 0) {
                tell("put", number);
            }
        }
        waitForAll(engine, given, run, run.startMs + given.endMs() + afterMs, isTold);
        run.seconds = (System.nanoTime() - startNs) / 1e9;
        run.cpuSeconds = (cpuNs() - startCpuNs) / 1e9;
        // One more look later, so that a repeat behind the last message is not missed.
        Thread.sleep(LEAD_MS);
        engine.stop();
        return run;
    }

    private void waitForAll(Engine engine, Workload given, Run run, long untilMs, boolean isTold)
            throws Exception {
        while (true) {
            run.delivered = 0;
            for (String topic : given.topics) {
                for (int queueId = 0; queueId < Workload.QUEUES; queueId++) {
                    run.delivered += engine.held(topic, queueId);
                }
            }
            if (isTold) {
                tell("delivered", run.delivered);
            }
            boolean isAll = run.delivered >= given.count - run.refusals;
            if (isAll || System.currentTimeMillis() > untilMs) {
                return;
            }
            Thread.sleep(LOOK_EVERY_MS);
        }
    }

    private static void waitUntil(long timeNs) {
        long left = timeNs - System.nanoTime();
        while (left > 0) {
            LockSupport.parkNanos(left);
            left = timeNs - System.nanoTime();
        }
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
                ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private void tell(String what, long number) {
        long nowMs = System.currentTimeMillis();
        if (what.equals("start") || nowMs - toldMs >= TELL_EVERY_MS) {
            toldMs = nowMs;
            System.out.println("race: " + what + " " + number);
            System.out.flush();
        }
    }

    private void endWithTheParent() {
        Thread clock = new Thread(() -> {
            LockSupport.parkUntil(System.currentTimeMillis() + millis("deadlineMs"));
            Runtime.getRuntime().halt(GAVE_UP);
        });
        Thread parent = new Thread(() -> {
            try (InputStream input = System.in) {
                while (input.read() >= 0) {
                    continue;
                }
            } catch (IOException gone) {
                // as good as its end
            }
            Runtime.getRuntime().halt(GAVE_UP);
        });
        for (Thread each : List.of(clock, parent)) {
            each.setDaemon(true);
            each.start();
        }
    }

    /** What a run tells besides its store. */
    private static final class Run {
        private long startMs;
        private long putNs;
        private long longestPutNs;
        private long delivered;
        private int refusals;
        private double seconds;
        private double cpuSeconds;
        private ByteBuffer promisedMs;

        String toJson(Map<String, Integer> failures) {
            return String.format(
                "{\"start_ms\": %d, \"put_s\": %.6f, \"longest_put_ms\": %.3f, \"seconds\": %.6f,"
                    + " \"cpu_s\": %.3f, \"delivered\": %d, \"java\": \"%s\", \"failures\": %s}%n",
                startMs, putNs / 1e9, longestPutNs / 1e6, seconds, cpuSeconds, delivered,
                System.getProperty("java.version"), RemotingSerializable.toJson(failures, false));
        }
    }

    /** Columns, a row a message, as compare/workload.py has them; times from the race's start. */
    private static final class Workload {
        private static final int QUEUES = 4;
        private static final int NUMBER_BYTES = 8;
        private static final long STRIDE = 7_919;
        private static final int BLOCK_BYTES = 1 << 20;
        private static final int NPY_MAGIC_BYTES = 8;

        private int count;
        private String[] topics;
        private long[] arrivalMs;
        private long[] dueMs;
        private int[] level;
        private int[] topic;
        private int[] bodyBytes;
        private byte[] block;

        static Workload warmup(int count) {
            Workload made = new Workload();
            made.count = count;
            made.topics = new String[] {"Warmup"};
            made.arrivalMs = new long[count];
            made.dueMs = new long[count];
            Arrays.fill(made.dueMs, WARMUP_DELAY_MS);
            made.level = new int[count];
            made.topic = new int[count];
            made.bodyBytes = new int[count];
            Arrays.fill(made.bodyBytes, 1_024);
            made.block = new byte[BLOCK_BYTES + 1_024];
            return made;
        }

        /** An uncompressed .npz: columns of int64, a block of bytes, and facts as JSON. */
        static Workload read(Path file) throws IOException {
            Workload found = new Workload();
            try (ZipFile archive = new ZipFile(file.toFile())) {
                Map<?, ?> facts = RemotingSerializable.fromJson(
                    new String(column(archive, "facts").array(), StandardCharsets.UTF_8),
                    Map.class);
                long startMs = ((Number) facts.get("start_ms")).longValue();
                found.topics = ((List<?>) facts.get("topics")).toArray(new String[0]);
                found.arrivalMs = longs(archive, "arrival_ms");
                found.dueMs = longs(archive, "due_ms");
                found.count = found.arrivalMs.length;
                for (int i = 0; i < found.count; i++) {
                    found.arrivalMs[i] -= startMs;
                    found.dueMs[i] -= startMs;
                }
                found.level = ints(archive, "level");
                found.topic = ints(archive, "topic");
                found.bodyBytes = ints(archive, "body_bytes");
                found.block = column(archive, "block").array();
            }
            return found;
        }

        /** What stands in one column: all behind a header that says how long it is itself. */
        private static ByteBuffer column(ZipFile archive, String name) throws IOException {
            try (DataInputStream input = new DataInputStream(
                    archive.getInputStream(archive.getEntry(name + ".npy")))) {
                input.skipBytes(NPY_MAGIC_BYTES);
                int headerBytes = Short.toUnsignedInt(Short.reverseBytes(input.readShort()));
                input.skipBytes(headerBytes);
                return ByteBuffer.wrap(input.readAllBytes()).order(ByteOrder.LITTLE_ENDIAN);
            }
        }

        private static long[] longs(ZipFile archive, String name) throws IOException {
            ByteBuffer bytes = column(archive, name);
            long[] made = new long[bytes.limit() / Long.BYTES];
            bytes.asLongBuffer().get(made);
            return made;
        }

        private static int[] ints(ZipFile archive, String name) throws IOException {
            return Arrays.stream(longs(archive, name)).mapToInt(Math::toIntExact).toArray();
        }

        private long endMs() {
            return Math.max(
                Arrays.stream(dueMs).max().orElse(0), Arrays.stream(arrivalMs).max().orElse(0));
        }

        /** The number of the message, then a piece of the block. */
        private byte[] body(int number) {
            byte[] body = new byte[bodyBytes[number]];
            ByteBuffer.wrap(body).putLong(number);
            int place = (int) (number * STRIDE % BLOCK_BYTES);
            System.arraycopy(block, place, body, NUMBER_BYTES, body.length - NUMBER_BYTES);
            return body;
        }
    }
}
