// SPDX-License-Identifier: Apache-2.0

import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Lets RocketMQ 5's own TimerMessageStore deliver from stores, and stops each when its topic has
 * what is wanted, or after a minute without it; and a while later, when no more came.
 *
 * <p>Usage: java WheelWitness LOG_FILE_BYTES QUEUE_FILE_BYTES TIMER_FILE_BYTES TOPIC
 * DIRECTORY=WINDOW_SLOTS=WANTED...
 */
public final class WheelWitness {
    private static final int PATIENCE_MS = 60_000;
    private static final int QUIET_MS = 3_000;
    private static final int LOOK_EVERY_MS = 50;

    public static void main(String[] args) {
        int exitCode = 1;
        try {
            for (int i = 4; i < args.length; i++) {
                String[] store = args[i].split("=");
                run(args, Paths.get(store[0]), Integer.parseInt(store[1]),
                    Long.parseLong(store[2]));
            }
            exitCode = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        Runtime.getRuntime().halt(exitCode);
    }

    private static void run(String[] args, Path directory, int windowSlots, long wanted)
            throws Exception {
        MessageStoreConfig config = Entrant.configOf(directory);
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[0]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[1]));
        config.setMappedFileSizeTimerLog(Integer.parseInt(args[2]));
        config.setTimerRollWindowSlot(windowSlots);
        config.setMessageIndexEnable(false);
        BrokerController controller = WheelEntrant.started(config);
        MessageStore store = controller.getMessageStore();
        long untilMs = System.currentTimeMillis() + PATIENCE_MS;
        while (store.getMaxOffsetInQueue(args[3], 0) + store.getMaxOffsetInQueue(args[3], 1) < wanted
                && System.currentTimeMillis() < untilMs) {
            Thread.sleep(LOOK_EVERY_MS);
        }
        Thread.sleep(QUIET_MS);
        WheelEntrant.stop(controller);
    }
}
