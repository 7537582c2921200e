// SPDX-License-Identifier: Apache-2.0

import java.io.DataInputStream;
import java.io.BufferedInputStream;
import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.channels.FileChannel;
import java.nio.MappedByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * One of RocketMQ's own engines in a race: puts the messages of a file into the stock store, one
 * thread, lets the store deliver them, stops it, and leaves the store and a few numbers behind. What
 * was delivered when is read from the store's files afterwards, by whoever started this.
 *
 * <p>Usage: java LevelsEntrant|WheelEntrant key=value ... with messages, store, warmup, out (files and
 * directories), startMs (the time that arrivals and due times count from; 0: now), deadlineMs and
 * whatever the engine takes. Nothing listens on any port. It ends by itself: when all is delivered, at
 * the deadline, or when its standard input closes.
 */
abstract class Entrant {
    private static final int WARMUP_MESSAGES = 30_000;
    private static final int WARMUP_DELAY_MS = 1_500;
    private static final int SAMPLE_MS = 200;
    private static final int DEADLINE_EXIT = 3;

    /** The messages as columns; texts are shared between those that are alike. */
    static final class Messages {
        int count;
        long[] arrivalMs;
        long[] dueMs;
        int[] level;
        int[] queueId;
        String[] topic;
        String[] tags;
        String[] keys;
        int[] bodyStart;
        int[] bodySize;
        byte[] bodies;
    }
}
