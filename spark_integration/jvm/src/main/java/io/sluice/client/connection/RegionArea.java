package io.sluice.client.connection;

import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.BitSet;
import java.util.Deque;
import java.util.IdentityHashMap;

/**
 * A file of a TaskManager on this host that both sides map, divided into slots for region buffers.
 * The TaskManager deletes the file when no connection is attached to it; the slots stay valid
 * memory. Thread safe.
 */
public final class RegionArea {
    private final String token;
    private final Endpoint endpoint;
    private final int slotBytes;

    /** By identity, because buffers with the same content are equal. */
    private final IdentityHashMap<ByteBuffer, Integer> slots = new IdentityHashMap<>();

    /** Last in, first out: recently used memory is warm. */
    private final Deque<ByteBuffer> free = new ArrayDeque<>();

    private final BitSet taken = new BitSet();

    private RegionArea(String token, Endpoint endpoint, int slotBytes) {
        this.token = token;
        this.endpoint = endpoint;
        this.slotBytes = slotBytes;
    }

    /**
     * Maps the file of an area.
     *
     * @param endpoint address of the TaskManager that made it
     * @param path a file that exists
     * @param sizeBytes size that the file must have
     * @param slotBytes capacity of each slot
     * @throws IOException if the file does not exist, is not writable, or has another size
     */
    public static RegionArea open(
            String token, Endpoint endpoint, String path, long sizeBytes, int slotBytes)
            throws IOException {
        RegionArea area = new RegionArea(token, endpoint, slotBytes);
        try (FileChannel file =
                FileChannel.open(
                        Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            // Mapping beyond the end of a file would enlarge it.
            if (file.size() != sizeBytes || sizeBytes < slotBytes) {
                throw new IOException(
                        String.format(
                                "it has %d bytes instead of %d, and a slot takes %d",
                                file.size(), sizeBytes, slotBytes));
            }
            // One mapping for each slot: a mapping is limited to 2 GiB.
            for (long offset = 0; offset + slotBytes <= sizeBytes; offset += slotBytes) {
                area.add(file.map(FileChannel.MapMode.READ_WRITE, offset, slotBytes));
            }
        } catch (InvalidPathException e) {
            throw new IOException("its path is invalid: " + e.getMessage(), e);
        }
        return area;
    }

    private synchronized void add(ByteBuffer slot) {
        slots.put(slot, slots.size());
        free.addLast(slot);
    }

    public String token() {
        return token;
    }

    public Endpoint endpoint() {
        return endpoint;
    }

    /** Takes a free slot, big endian and direct; returns null if there is none. */
    public synchronized ByteBuffer take() {
        ByteBuffer slot = free.pollFirst();
        if (slot != null) {
            taken.set(slots.get(slot));
        }
        return slot;
    }

    /** Takes back a slot; ignores other buffers, and a slot that is already free. */
    public synchronized void recycle(ByteBuffer slot) {
        Integer index = slots.get(slot);
        if (index != null && taken.get(index)) {
            taken.clear(index);
            free.addFirst(slot);
        }
    }

    /** Returns the offset of a slot in the area, or -1 if the buffer is not one of its slots. */
    public long offsetOf(ByteBuffer buffer) {
        Integer index = slots.get(buffer);
        return index == null ? -1 : (long) index * slotBytes;
    }
}
