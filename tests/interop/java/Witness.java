// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.Delayed;
import java.util.concurrent.RunnableScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * One of RocketMQ's own engines, which does what it is told and is at rest after each answer.
 *
 * <p>Usage: java SetClock NAMEWitness. Each line of standard input is a command; its answer is a
 * line. It ends with its standard input.
 *
 * <pre>
 * open DIRECTORY SETTING...                           start on a store
 * set MS                                              let it be so late
 * rest ROUNDS                                         wait; levels look so often meanwhile
 * put TOPIC QUEUE BODY_HEX PROPERTIES_HEX [DUE_MS]    what a broker is given
 * flush                                               write down how far it is
 * close                                               stop as a broker stops
 * </pre>
 */
abstract class Witness {
    private static final long PATIENCE_NS = TimeUnit.SECONDS.toNanos(60);
    private static final long BETWEEN_LOOKS_NS = TimeUnit.MILLISECONDS.toNanos(100);

    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 0);

    abstract void open(String[] words) throws Exception;

    /** Put it; how the store answered. */
    abstract Object put(String[] words) throws Exception;

    abstract void flush() throws Exception;

    abstract void close() throws Exception;

    /** Wait until nothing more happens at the time that is set. */
    abstract void rest(int rounds) throws Exception;

    final void serve() {
        PrintStream answers = System.out;
        System.setOut(System.err); // RocketMQ logs to it
        try (BufferedReader lines = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(answer(line.split(" ")));
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        // Threads of a stock store that are not daemons must not keep this process alive.
        Runtime.getRuntime().halt(0);
    }

    private Object answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                open(words);
                return "opened";
            case "set":
                SetClock.set(Long.parseLong(words[1]));
                return "set";
            case "rest":
                rest(Integer.parseInt(words[1]));
                return "at rest";
            case "put":
                return put(words);
            case "flush":
                flush();
                return "flushed";
            case "close":
                close();
                return "closed";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** What every store is opened with. */
    static MessageStoreConfig configOf(String[] words) {
        MessageStoreConfig config = Entrant.configOf(Paths.get(words[1]));
        config.setMappedFileSizeCommitLog(Integer.parseInt(words[2]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(words[3]));
        config.setEnableScheduleAsyncDeliver(Boolean.parseBoolean(words[4]));
        config.setMessageDelayLevel(words[5].replace(',', ' '));
        config.setMessageIndexEnable(false);
        return config;
    }

    static void waitUntil(String what, Callable<Boolean> condition) throws Exception {
        long untilNs = System.nanoTime() + PATIENCE_NS;
        while (!condition.call()) {
            if (System.nanoTime() > untilNs) {
                throw new IllegalStateException("still not: " + what);
            }
            Thread.sleep(1);
        }
    }

    static Object field(Object owner, String name) throws Exception {
        for (Class<?> at = owner.getClass(); at != null; at = at.getSuperclass()) {
            for (Field field : at.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field.get(owner);
                }
            }
        }
        throw new NoSuchFieldException(name);
    }

    /** Offsets are saved when this is told to, and not ten seconds after the start. */
    static void saveOnlyWhenTold(Object service, String executor) throws Exception {
        ScheduledThreadPoolExecutor tasks =
            (ScheduledThreadPoolExecutor) field(service, executor);
        for (Runnable each : tasks.getQueue()) {
            if (((RunnableScheduledFuture<?>) each).isPeriodic()) {
                tasks.remove(each);
            }
        }
    }

    /** Wait until each level has looked so often from now on, and no put is pending. */
    static void levelsLook(Object service, int rounds) throws Exception {
        int levels = ((Map<?, ?>) field(service, "delayLevelTable")).size();
        ScheduledThreadPoolExecutor tasks =
            (ScheduledThreadPoolExecutor) field(service, "deliverExecutorService");
        Map<?, ?> pending = (Map<?, ?>) field(service, "deliverPendingTable");
        for (int round = 0; round < rounds; round++) {
            // A task leaves the next when it ends: one that is due later than this was left since.
            long laterNs = System.nanoTime() + BETWEEN_LOOKS_NS;
            waitUntil("looked", () -> tasks.getQueue().stream()
                .filter(each -> isDueBetween((Delayed) each, laterNs)).count() == levels);
            waitUntil("put", () -> pending.values().stream()
                .allMatch(each -> ((BlockingQueue<?>) each).isEmpty()));
        }
    }

    /** The first task of a level is left for a second after the start: that is no look. */
    private static boolean isDueBetween(Delayed task, long laterNs) {
        long inNs = task.getDelay(TimeUnit.NANOSECONDS);
        return inNs <= BETWEEN_LOOKS_NS && System.nanoTime() + inNs >= laterNs;
    }

    /** A message as it comes off the network; its class has another place in each version. */
    static <M extends MessageExt> M filled(M message, String[] words) {
        String properties = new String(bytes(words[4]), StandardCharsets.UTF_8);
        message.setTopic(words[1]);
        message.setQueueId(Integer.parseInt(words[2]));
        message.setBody(bytes(words[3]));
        message.setBornTimestamp(SetClock.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.setProperties(
            message, MessageDecoder.string2messageProperties(properties));
        return message;
    }

    private static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }
}
