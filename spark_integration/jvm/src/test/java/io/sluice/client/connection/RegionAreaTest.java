package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.output.RegionPool;
import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests the slots of a region area. */
class RegionAreaTest {
    /** Not a multiple of a page, because regions may have any size. */
    private static final int SLOT = 70_001;

    private static final Endpoint ENDPOINT = new Endpoint("/run/tm.sock", null, 0);

    @TempDir Path directory;

    private Path file(long bytes) throws IOException {
        return Files.write(directory.resolve("area"), new byte[(int) bytes]);
    }

    private static RegionArea open(Path path, long bytes) throws IOException {
        return RegionArea.open("token", ENDPOINT, path.toString(), bytes, SLOT);
    }

    @Test
    void everySlotMapsItsPartOfTheFile() throws IOException {
        Path path = file(3 * SLOT + 5);
        RegionArea area = open(path, 3 * SLOT + 5);
        Set<Long> offsets = new HashSet<>();
        for (int i = 0; i < 3; i++) {
            ByteBuffer slot = area.take();
            assertTrue(slot.isDirect());
            assertEquals(ByteOrder.BIG_ENDIAN, slot.order());
            assertEquals(SLOT, slot.capacity());
            assertTrue(offsets.add(area.offsetOf(slot)));
            slot.putLong(0, 1000 + area.offsetOf(slot)).put(SLOT - 1, (byte) (i + 1));
        }
        assertEquals(Set.of(0L, (long) SLOT, 2L * SLOT), offsets);
        assertNull(area.take(), "all are taken");
        ByteBuffer found = ByteBuffer.wrap(Files.readAllBytes(path));
        assertEquals(3 * SLOT + 5, found.capacity(), "the file is not enlarged");
        Set<Byte> ends = new HashSet<>();
        for (long offset : offsets) {
            assertEquals(1000 + offset, found.getLong((int) offset));
            ends.add(found.get((int) offset + SLOT - 1));
        }
        assertEquals(Set.of((byte) 1, (byte) 2, (byte) 3), ends);
    }

    @Test
    void aRecycledSlotIsFree() throws IOException {
        RegionArea area = open(file(2 * SLOT), 2 * SLOT);
        ByteBuffer first = area.take();
        ByteBuffer second = area.take();
        area.recycle(second);
        area.recycle(second);
        assertSame(second, area.take());
        assertNull(area.take(), "twice recycled is once free");
        area.recycle(first);
        assertSame(first, area.take());
    }

    @Test
    void aForeignBufferIsNotASlot() throws IOException {
        RegionArea area = open(file(SLOT), SLOT);
        ByteBuffer slot = area.take();
        ByteBuffer equal = ByteBuffer.allocateDirect(SLOT);
        assertEquals(slot, equal, "in content");
        assertEquals(0, area.offsetOf(slot));
        assertEquals(-1, area.offsetOf(equal));
        assertEquals(-1, area.offsetOf(slot.duplicate()));
        area.recycle(equal);
        assertNull(area.take());
    }

    @Test
    void onlyAFileOfTheAnnouncedSizeIsMapped() throws IOException {
        Path path = file(SLOT);
        IOException larger = assertThrows(IOException.class, () -> open(path, 2 * SLOT));
        assertTrue(larger.getMessage().contains(SLOT + " bytes"), larger.getMessage());
        assertEquals(SLOT, Files.size(path));
        assertThrows(IOException.class, () -> open(file(SLOT - 1), SLOT - 1), "not one slot");
        Path missing = directory.resolve("missing");
        assertThrows(NoSuchFileException.class, () -> open(missing, SLOT));
        assertFalse(Files.exists(missing), "never made");
        assertThrows(IOException.class, () -> RegionArea.open("token", ENDPOINT, "\0", SLOT, SLOT));
    }

    @Test
    void anInterruptIsNotTakenForAnUnusableFile() throws IOException {
        Path path = file(SLOT);
        Thread.currentThread().interrupt();
        assertThrows(ClosedByInterruptException.class, () -> open(path, SLOT));
        assertTrue(Thread.interrupted());
        assertNotNull(open(path, SLOT).take());
    }

    @Test
    void aPoolWithoutAnAreaRecyclesItsOwnBuffers() {
        RegionPool pool = new RegionPool(SLOT, 1, 4);
        ByteBuffer first = pool.take(0);
        ByteBuffer second = pool.take(0);
        assertNotSame(first, second);
        pool.recycle(first);
        pool.recycle(second);
        assertEquals(1, pool.idleRegions(), "the rest is given up");
        assertSame(first, pool.take(0));
    }
}
