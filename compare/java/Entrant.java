// SPDX-License-Identifier: Apache-2.0

import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * One of RocketMQ's own engines in a race: puts the messages of a file into the stock store with one
 * thread, lets the store deliver them, stops it, and leaves the store and a few numbers behind. When
 * what was delivered is read from the store's files afterwards, by whoever started this.
 *
 * <p>Usage: java LevelsEntrant|WheelEntrant key=value ... with the paths messages, store, scratch and
 * out, and the numbers afterMs (from the last due time until it gives up), warmup (messages that go
 * through another store before the race), deadlineMs (for all of it) and what the engine takes. It
 * listens on no port. It ends when all is delivered, at the deadline, or when its standard input
 * closes.
 */
abstract class Entrant {
    private static final int WARMUP_DELAY_MS = 1_500;
    private static final int LEAD_MS = 300;
    private static final int LOOK_EVERY_MS = 10;
    private static final int DEADLINE_EXIT = 3;

    private final Map<String, String> options = new HashMap<>();

    /** One engine over one directory. */
    interface Engine {
        /** Put one message; false where the store refused it. */
        boolean put(Workload from, int number, byte[] body, long dueMs);

        /** How many messages a queue of a real topic holds. */
        long delivered(String topic, int queueId) throws Exception;

        void stop() throws Exception;
    }

    abstract Engine open(Path directory) throws Exception;

    /** As long as the one that a client makes, and the same in every race. */
    static String uniqueKey(int number) {
        return String.format("7F0000010000000000000000%08X", number);
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
        // Threads of a stock broker that are not daemons must not keep this process alive.
        Runtime.getRuntime().halt(exitCode);
    }

    final Path path(String name) {
        return Paths.get(options.get(name));
    }

    final int number(String name) {
        return Integer.parseInt(options.get(name));
    }

    private void race() throws Exception {
        if (number("warmup") > 0) {
            Workload warmup = Workload.of(number("warmup"), WARMUP_DELAY_MS);
            run(warmup, path("scratch").resolve("warmup"), 30_000);
            remove(path("scratch").resolve("warmup"));
            System.gc();
        }
        Workload workload = Workload.read(path("messages"));
        Run run = run(workload, path("store"), number("afterMs"));
        Files.write(path("out"), run.toJson().getBytes(StandardCharsets.UTF_8));
    }

    private Run run(Workload workload, Path directory, long afterMs) throws Exception {
        Engine engine = open(directory);
        Run run = new Run();
        // Arrivals begin with a whole millisecond that is still to come.
        run.startMs = System.currentTimeMillis() + LEAD_MS;
        say("start " + run.startMs);
        sleepUntil(run.startMs);
        long startNs = System.nanoTime();
        long startCpuNs = cpuNs();
        for (int number = 0; number < workload.count; number++) {
            waitUntil(startNs + workload.arrivalMs(number) * 1_000_000);
            byte[] body = workload.body(number);
            long before = System.nanoTime();
            boolean isIn = engine.put(workload, number, body, run.startMs + workload.dueMs(number));
            long took = System.nanoTime() - before;
            run.putNs += took;
            run.longestPutNs = Math.max(run.longestPutNs, took);
            if (!isIn) {
                run.refused.append(run.refused.length() == 0 ? "" : ",").append(number);
                run.refusals++;
            }
            if ((number & 0x3fff) == 0) {
                say("put " + number);
            }
        }
        run.putEndMs = System.currentTimeMillis();
        waitForAll(engine, workload, run, run.startMs + workload.lastDueMs() + afterMs);
        run.seconds = (System.nanoTime() - startNs) / 1e9;
        run.cpuSeconds = (cpuNs() - startCpuNs) / 1e9;
        engine.stop();
        return run;
    }

    private void waitForAll(Engine engine, Workload workload, Run run, long untilMs)
            throws Exception {
        long expected = workload.count - run.refusals;
        while (true) {
            run.delivered = 0;
            for (String topic : workload.topics) {
                for (int queueId = 0; queueId <= workload.lastQueueId; queueId++) {
                    run.delivered += engine.delivered(topic, queueId);
                }
            }
            say("delivered " + run.delivered);
            // One more look, so that a repeat right behind the last message is not missed.
            if (run.delivered >= expected || System.currentTimeMillis() > untilMs) {
                Thread.sleep(LEAD_MS);
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

    private static void sleepUntil(long timeMs) throws InterruptedException {
        long left = timeMs - System.currentTimeMillis();
        while (left > 0) {
            Thread.sleep(left);
            left = timeMs - System.currentTimeMillis();
        }
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
                ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private long lastSaidMs;

    private void say(String line) {
        long nowMs = System.currentTimeMillis();
        if (line.startsWith("start") || nowMs - lastSaidMs >= 200) {
            lastSaidMs = nowMs;
            System.out.println("race: " + line);
            System.out.flush();
        }
    }

    private void endWithTheParent() {
        long deadlineMs = number("deadlineMs");
        Thread clock = new Thread(() -> {
            try {
                Thread.sleep(deadlineMs);
            } catch (InterruptedException never) {
                return;
            }
            Runtime.getRuntime().halt(DEADLINE_EXIT);
        });
        Thread parent = new Thread(() -> {
            try (InputStream input = System.in) {
                while (input.read() >= 0) {
                    continue;
                }
            } catch (IOException gone) {
                // as good as its end
            }
            Runtime.getRuntime().halt(DEADLINE_EXIT);
        });
        for (Thread each : List.of(clock, parent)) {
            each.setDaemon(true);
            each.start();
        }
    }

    private static void remove(Path directory) throws IOException {
        List<Path> below;
        try (Stream<Path> walk = Files.walk(directory)) {
            below = walk.sorted(Comparator.reverseOrder()).collect(Collectors.toList());
        }
        for (Path each : below) {
            Files.delete(each);
        }
    }

    /** What a run tells besides its store. */
    private static final class Run {
        private long startMs;
        private long putEndMs;
        private long putNs;
        private long longestPutNs;
        private long delivered;
        private long refusals;
        private double seconds;
        private double cpuSeconds;
        private final StringBuilder refused = new StringBuilder();

        String toJson() {
            return String.format(
                "{\"start_ms\": %d, \"put_end_ms\": %d, \"put_s\": %.6f, \"longest_put_ms\": %.3f,"
                    + " \"seconds\": %.6f, \"cpu_s\": %.3f, \"delivered\": %d, \"refused\": [%s],"
                    + " \"java\": \"%s\"}%n",
                startMs, putEndMs, putNs / 1e9, longestPutNs / 1e6, seconds, cpuSeconds, delivered,
                refused, System.getProperty("java.version"));
        }
    }

    /** The messages as columns; texts that are alike are shared. */
    static final class Workload {
        private static final int WINDOW_BITS = 29;
        private static final long OVERLAP = 16 << 20;

        int count;
        int lastQueueId;
        String[] topics;
        private String[] allTags;
        private LongBuffer arrivalMs;
        private LongBuffer dueMs;
        private ByteBuffer topic;
        private ByteBuffer tags;
        private ByteBuffer queueId;
        private LongBuffer keyEnds;
        private ByteBuffer keys;
        private LongBuffer bodyEnds;
        private ByteBuffer[] bodies;

        /** Messages for warming up: all of them at once, due a little later. */
        static Workload of(int count, int delayMs) {
            Workload made = new Workload();
            made.count = count;
            made.topics = new String[] {"Warmup"};
            made.allTags = new String[] {"warm"};
            made.arrivalMs = LongBuffer.allocate(count);
            made.dueMs = LongBuffer.allocate(count);
            made.topic = ByteBuffer.allocate(count);
            made.tags = ByteBuffer.allocate(count);
            made.queueId = ByteBuffer.allocate(count);
            made.keyEnds = LongBuffer.allocate(count + 1);
            made.keys = ByteBuffer.allocate(count);
            made.bodyEnds = LongBuffer.allocate(count + 1);
            made.bodies = new ByteBuffer[] {ByteBuffer.allocate(count * 1024)};
            for (int i = 0; i < count; i++) {
                made.dueMs.put(i, delayMs + i % 1000);
                made.keys.put(i, (byte) 'k');
                made.keyEnds.put(i + 1, i + 1);
                made.bodyEnds.put(i + 1, (i + 1) * 1024L);
            }
            return made;
        }

        static Workload read(Path file) throws IOException {
            Workload found = new Workload();
            try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
                ByteBuffer head = map(channel, 0, 24);
                found.count = (int) head.getLong();
                long namesBytes = head.getLong();
                long keyBytes = head.getLong();
                ByteBuffer names = map(channel, 24, namesBytes);
                found.topics = texts(names);
                found.allTags = texts(names);
                long place = 24 + namesBytes;
                long longs = 8L * found.count;
                found.arrivalMs = map(channel, place, longs).asLongBuffer();
                found.dueMs = map(channel, place += longs, longs).asLongBuffer();
                found.keyEnds = map(channel, place += longs, longs + 8).asLongBuffer();
                found.bodyEnds = map(channel, place += longs + 8, longs + 8).asLongBuffer();
                found.topic = map(channel, place += longs + 8, found.count);
                found.tags = map(channel, place += found.count, found.count);
                found.queueId = map(channel, place += found.count, found.count);
                found.keys = map(channel, place += found.count, keyBytes);
                found.bodies = windows(channel, place += keyBytes);
            }
            for (int i = 0; i < found.count; i++) {
                found.lastQueueId = Math.max(found.lastQueueId, found.queueId.get(i));
            }
            return found;
        }

        private static ByteBuffer map(FileChannel channel, long place, long size)
                throws IOException {
            return channel.map(FileChannel.MapMode.READ_ONLY, place, size);
        }

        /** Windows that overlap by more than a message, since one mapping ends at 2 GiB. */
        private static ByteBuffer[] windows(FileChannel channel, long place) throws IOException {
            long size = channel.size() - place;
            ByteBuffer[] made = new ByteBuffer[(int) (size >> WINDOW_BITS) + 1];
            for (int i = 0; i < made.length; i++) {
                long start = (long) i << WINDOW_BITS;
                long length = Math.min((1L << WINDOW_BITS) + OVERLAP, size - start);
                made[i] = map(channel, place + start, length);
            }
            return made;
        }

        private static String[] texts(ByteBuffer from) {
            String[] made = new String[from.getInt()];
            for (int i = 0; i < made.length; i++) {
                byte[] text = new byte[from.getInt()];
                from.get(text);
                made[i] = new String(text, StandardCharsets.UTF_8);
            }
            return made;
        }

        long arrivalMs(int number) {
            return arrivalMs.get(number);
        }

        long dueMs(int number) {
            return dueMs.get(number);
        }

        long lastDueMs() {
            long last = 0;
            for (int i = 0; i < count; i++) {
                last = Math.max(last, Math.max(dueMs.get(i), arrivalMs.get(i)));
            }
            return last;
        }

        String topic(int number) {
            return topics[topic.get(number) & 0xff];
        }

        /** Empty where it has none. */
        String tags(int number) {
            return allTags[tags.get(number) & 0xff];
        }

        int queueId(int number) {
            return queueId.get(number);
        }

        /** Empty where it has none. */
        String keys(int number) {
            long start = keyEnds.get(number);
            byte[] text = new byte[(int) (keyEnds.get(number + 1) - start)];
            keys.get((int) start, text);
            return new String(text, StandardCharsets.UTF_8);
        }

        byte[] body(int number) {
            long start = bodyEnds.get(number);
            byte[] body = new byte[(int) (bodyEnds.get(number + 1) - start)];
            ByteBuffer window = bodies[(int) (start >> WINDOW_BITS)];
            window.get((int) (start & ((1L << WINDOW_BITS) - 1)), body);
            return body;
        }
    }
}
