// SPDX-License-Identifier: Apache-2.0
import java.io.RandomAccessFile;
import java.nio.channels.FileLock;

/** Takes a store's lock as BrokerStartup does, says whether it got it, and holds it until stdin ends. */
public class TryLock {
    public static void main(String[] args) throws Exception {
        RandomAccessFile file = new RandomAccessFile(args[0], "rw");
        FileLock lock = file.getChannel().tryLock(0, 1, false);
        System.out.println(lock == null ? "held" : "got");
        System.out.flush();
        while (lock != null && System.in.read() >= 0) {
        }
    }
}
