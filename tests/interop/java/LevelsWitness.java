// SPDX-License-Identifier: Apache-2.0

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Lets RocketMQ 4.9's own ScheduleMessageService deliver from stores, and stops each when its topics
 * have what is wanted, or after two minutes without it; and a while later, when no more came.
 *
 * <p>Usage: java LevelsWitness LEVEL_TABLE LOG_FILE_BYTES QUEUE_FILE_BYTES DIRECTORY=WANTED... A
 * directory whose name ends in "async" is delivered so.
 */
public final class LevelsWitness {
    private static final int PATIENCE_MS = 120_000;
    private static final int QUIET_MS = 5_000;
    private static final int LOOK_EVERY_MS = 50;

    public static void main(String[] args) {
        ExecutorService threads = Executors.newFixedThreadPool(args.length);
        List<Future<?>> runs = new ArrayList<>();
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=");
            runs.add(threads.submit(() -> {
                run(args, Paths.get(pair[0]), Long.parseLong(pair[1]));
                return null;
            }));
        }
        int exitCode = 1;
        try {
            for (Future<?> each : runs) {
                each.get();
            }
            exitCode = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        Runtime.getRuntime().halt(exitCode);
    }

    private static void run(String[] args, Path directory, long wanted) throws Exception {
        MessageStoreConfig config = Entrant.configOf(directory);
        config.setMessageDelayLevel(args[0]);
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMessageIndexEnable(false);
        config.setEnableScheduleAsyncDeliver(directory.toString().endsWith("async"));
        DefaultMessageStore store = LevelsEntrant.started(config);
        long untilMs = System.currentTimeMillis() + PATIENCE_MS;
        while (delivered(store) < wanted && System.currentTimeMillis() < untilMs) {
            Thread.sleep(LOOK_EVERY_MS);
        }
        Thread.sleep(QUIET_MS);
        store.shutdown();
    }

    private static long delivered(DefaultMessageStore store) {
        return store.getConsumeQueueTable().entrySet().stream()
            .filter(topic -> !topic.getKey().equals(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC))
            .flatMap(topic -> topic.getValue().values().stream())
            .mapToLong(ConsumeQueue::getMaxOffsetInQueue)
            .sum();
    }
}
