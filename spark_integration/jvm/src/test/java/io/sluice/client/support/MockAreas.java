package io.sluice.client.support;

import io.sluice.client.wire.Message;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

/** The region areas of a mock daemon: files in a directory of the test. */
public final class MockAreas {
    private final Path directory;
    private final Map<String, Path> files = new ConcurrentHashMap<>();
    private int made;

    /** Whether requests for a new area are refused. */
    public volatile boolean refuses;

    /** Whether answers name a path of another mount namespace. */
    public volatile boolean elsewhere;

    /** Open after a new area was requested. */
    public final CountDownLatch wanted = new CountDownLatch(1);

    /** Delays the answer to a request for a new area. */
    public volatile CountDownLatch answers = new CountDownLatch(0);

    public MockAreas(Path directory) {
        this.directory = directory;
    }

    public Message.RegionAreaAttached attach(Message.AttachRegionArea asked) throws IOException {
        if (!asked.token().isEmpty()) {
            Path known = files.get(asked.token());
            return known == null
                    ? none()
                    : new Message.RegionAreaAttached(asked.token(), known.toString(), size(known));
        }
        if (asked.sizeBytes() == 0 || refuses) {
            return none();
        }
        wanted.countDown();
        try {
            answers.await();
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
        return make(asked.sizeBytes());
    }

    private synchronized Message.RegionAreaAttached make(long sizeBytes) throws IOException {
        String token = "area-" + ++made;
        Path path = directory.resolve(token);
        if (!elsewhere) {
            try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
                file.setLength(sizeBytes);
            }
        }
        files.put(token, path);
        return new Message.RegionAreaAttached(token, path.toString(), sizeBytes);
    }

    private static Message.RegionAreaAttached none() {
        return new Message.RegionAreaAttached("", "", 0);
    }

    private static long size(Path path) {
        return path.toFile().length();
    }

    /** Forgets all areas, like a new process of the TaskManager. */
    public void forget() {
        files.clear();
    }

    /** Returns the bytes of an area as they are in the file, also of an area that was forgotten. */
    public byte[] read(String token, long offset, int length) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(directory.resolve(token).toFile(), "r")) {
            byte[] bytes = new byte[length];
            file.seek(offset);
            file.readFully(bytes);
            return bytes;
        }
    }
}
