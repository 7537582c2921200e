// SPDX-License-Identifier: Apache-2.0

import java.io.IOException;
import java.io.InputStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.Arrays;

/**
 * Lets RocketMQ's stock classes ask this clock for the time. It stands still until it is set.
 *
 * <p>Each class of RocketMQ is loaded with one change in its constant pool: a reference to
 * System.currentTimeMillis leads here. Its code stays what it is, byte for byte. What sleeps or
 * waits does so by the machine's time.
 *
 * <p>Usage: java SetClock PROGRAM ARGUMENT...
 */
public final class SetClock extends URLClassLoader {
    private static final String ROCKETMQ = "org.apache.rocketmq.";
    private static final int UTF8 = 1;
    private static final int CLASS = 7;
    private static final int METHOD = 10;
    private static volatile long nowMs;

    private SetClock(URL[] path) {
        super(path, ClassLoader.getPlatformClassLoader());
    }

    /** What RocketMQ takes for the machine's time. */
    public static long currentTimeMillis() {
        return nowMs;
    }

    /** From now on it is so late. */
    public static void set(long timeMs) {
        nowMs = timeMs;
    }

    public static void main(String[] args) throws Exception {
        String[] places = System.getProperty("java.class.path").split(":");
        URL[] path = Arrays.stream(places).map(SetClock::url).toArray(URL[]::new);
        ClassLoader loader = new SetClock(path);
        Thread.currentThread().setContextClassLoader(loader);
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        loader.loadClass(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }

    private static URL url(String place) {
        try {
            return Paths.get(place).toUri().toURL();
        } catch (MalformedURLException failure) {
            throw new IllegalArgumentException(failure);
        }
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
        return name.equals("SetClock") ? SetClock.class : super.loadClass(name, resolve);
    }

    @Override
    protected Class<?> findClass(String name) throws ClassNotFoundException {
        if (!name.startsWith(ROCKETMQ)) {
            return super.findClass(name);
        }
        try (InputStream file = getResourceAsStream(name.replace('.', '/') + ".class")) {
            if (file == null) {
                throw new ClassNotFoundException(name);
            }
            byte[] content = told(file.readAllBytes());
            return defineClass(name, content, 0, content.length);
        } catch (IOException failure) {
            throw new ClassNotFoundException(name, failure);
        }
    }

    /** A class file with a longer constant pool (JVM specification 4.4), if it asks for the time. */
    private static byte[] told(byte[] content) {
        ByteBuffer file = ByteBuffer.wrap(content);
        int count = Short.toUnsignedInt(file.getShort(8));
        int[] places = new int[count];
        file.position(10);
        for (int index = 1; index < count; index++) {
            places[index] = file.position();
            int tag = file.get();
            file.position(file.position() + switch (tag) {
                case UTF8 -> 2 + Short.toUnsignedInt(file.getShort(file.position()));
                case 5, 6 -> 8; // a long or a double takes two places
                case CLASS, 8, 16, 19, 20 -> 2;
                case 15 -> 3;
                default -> 4;
            });
            index += tag == 5 || tag == 6 ? 1 : 0;
        }
        boolean asks = false;
        for (int place : places) {
            if (place > 0 && content[place] == METHOD && isTheClock(file, places, place)) {
                file.putShort(place + 1, (short) (count + 1));
                asks = true;
            }
        }
        if (!asks) {
            return content;
        }
        byte[] name = SetClock.class.getName().getBytes(StandardCharsets.UTF_8);
        int end = file.position();
        ByteBuffer longer = ByteBuffer.allocate(content.length + 3 + name.length + 3);
        longer.put(content, 0, end).put((byte) UTF8).putShort((short) name.length).put(name);
        longer.put((byte) CLASS).putShort((short) count).put(content, end, content.length - end);
        return longer.putShort(8, (short) (count + 2)).array();
    }

    private static boolean isTheClock(ByteBuffer file, int[] places, int method) {
        int owner = places[Short.toUnsignedInt(file.getShort(method + 1))];
        int what = places[Short.toUnsignedInt(file.getShort(method + 3))];
        return text(file, places, owner).equals("java/lang/System")
            && text(file, places, what).equals("currentTimeMillis");
    }

    /** The text to which the first two bytes of an entry lead. */
    private static String text(ByteBuffer file, int[] places, int entry) {
        int place = places[Short.toUnsignedInt(file.getShort(entry + 1))];
        int length = Short.toUnsignedInt(file.getShort(place + 1));
        return new String(file.array(), place + 3, length, StandardCharsets.UTF_8);
    }
}
