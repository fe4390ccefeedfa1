package io.sluice.spark.writer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.spark.unsafe.Platform;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Checks that records come out of pages complete, by partition, in their order. */
class PartitionPagesTest {
    private static final long BASE = Platform.BYTE_ARRAY_OFFSET;

    /** Memory for a number of pages. */
    private static final class Budget implements PartitionPages.Memory {
        int free;

        Budget(int pages) {
            free = pages;
        }

        @Override
        public boolean acquirePage() {
            return free > 0 && free-- > 0;
        }

        @Override
        public void releasePages(int count) {
            free += count;
        }
    }

    private static Map<Integer, byte[]> drain(PartitionPages pages) throws IOException {
        Map<Integer, byte[]> found = new TreeMap<>();
        pages.drainTo(
                new PartitionPages.Sink() {
                    private int current = -1;
                    private ByteArrayOutputStream bytes;

                    @Override
                    public void begin(int partition) {
                        assertTrue(partition > current, "in their order");
                        current = partition;
                        bytes = new ByteArrayOutputStream();
                    }

                    @Override
                    public void write(byte[] from, int offset, int length) {
                        bytes.write(from, offset, length);
                    }

                    @Override
                    public void end() {
                        found.put(current, bytes.toByteArray());
                    }
                });
        return found;
    }

    private static void assertSame(
            Map<Integer, ByteArrayOutputStream> expected, Map<Integer, byte[]> found) {
        assertEquals(expected.keySet(), found.keySet());
        expected.forEach(
                (partition, bytes) -> assertArrayEquals(bytes.toByteArray(), found.get(partition)));
    }

    @ParameterizedTest
    @CsvSource({
        "1, 50, 4",
        "3, 3000, 8",
        "64, 1000, 16",
        "1000, 30, 4",
        "10000, 200, 16",
        "7, 200000, 8"
    })
    void recordsOfAnySizeComeOutByPartition(int partitions, int mostBytes, int pageCount)
            throws IOException {
        Random random = new Random(partitions);
        Budget budget = new Budget(pageCount);
        PartitionPages pages =
                new PartitionPages(partitions, pageCount * PartitionPages.PAGE_BYTES, budget);
        for (int pass = 0; pass < 3; pass++) {
            Map<Integer, ByteArrayOutputStream> expected = new TreeMap<>();
            long stored = 0;
            while (true) {
                int partition = (int) (partitions * Math.pow(random.nextDouble(), 3));
                byte[] record = new byte[1 + random.nextInt(mostBytes)];
                random.nextBytes(record);
                boolean sized = random.nextBoolean();
                if (!(sized
                        ? pages.appendSized(partition, record, BASE, record.length)
                        : pages.append(partition, record, BASE, record.length))) {
                    break;
                }
                ByteArrayOutputStream into =
                        expected.computeIfAbsent(partition, key -> new ByteArrayOutputStream());
                if (sized) {
                    into.write(ByteBuffer.allocate(4).putInt(record.length).array());
                }
                into.write(record);
                stored += record.length;
            }
            // A record may take half of the pages; in the worst case, chunks are filled to more
            // than a third.
            long least = ((long) pageCount * PartitionPages.PAGE_BYTES - mostBytes) / 4;
            assertTrue(stored > least, stored + " of " + pageCount + " pages");
            assertSame(expected, drain(pages));
            assertSame(expected, drain(pages));
            pages.clear();
            assertEquals(pageCount, pages.pageCount(), "the pages are kept");
            assertTrue(pages.isEmpty());
            assertTrue(drain(pages).isEmpty());
        }
        pages.release();
        assertEquals(pageCount, budget.free);
    }

    @Test
    void tenThousandPartitionsOfFewBytesNeedFewPages() {
        Budget budget = new Budget(100);
        PartitionPages pages = new PartitionPages(10_000, 100 * PartitionPages.PAGE_BYTES, budget);
        byte[] record = new byte[20];
        for (int partition = 0; partition < 10_000; partition++) {
            assertTrue(pages.appendSized(partition, record, BASE, record.length));
        }
        // 264 bytes for the first chunk of each partition.
        assertEquals(11, pages.pageCount());
    }

    @Test
    void anEmptyRecordTakesAtMostItsLength() throws IOException {
        PartitionPages pages = new PartitionPages(2, PartitionPages.PAGE_BYTES, new Budget(1));
        assertTrue(pages.append(0, new byte[0], BASE, 0));
        assertTrue(pages.appendSized(1, new byte[0], BASE, 0));
        assertTrue(pages.appendSized(1, new byte[0], BASE, 0));
        Map<Integer, byte[]> found = drain(pages);
        assertEquals(1, found.size());
        assertArrayEquals(new byte[8], found.get(1));
    }

    @ParameterizedTest
    @ValueSource(ints = {256 * 1024, 300 * 1024, Integer.MAX_VALUE - 8})
    void aRecordThatIsTooLargeIsNotStoredInPart(int length) throws IOException {
        PartitionPages pages = new PartitionPages(2, PartitionPages.PAGE_BYTES, new Budget(1));
        assertTrue(pages.append(1, new byte[] {7}, BASE, 1));
        assertFalse(pages.append(1, null, 0, length));
        assertFalse(pages.appendSized(1, null, 0, length));
        assertFalse(pages.append(0, null, 0, length));
        assertTrue(pages.append(1, new byte[] {8}, BASE, 1));
        assertEquals(1, pages.pageCount());
        assertArrayEquals(new byte[] {7, 8}, drain(pages).get(1));
    }

    @Test
    void withoutMemoryNothingIsStored() throws IOException {
        PartitionPages pages = new PartitionPages(2, 4 * PartitionPages.PAGE_BYTES, new Budget(0));
        assertFalse(pages.append(0, new byte[10], BASE, 10));
        assertTrue(pages.isEmpty());
        assertTrue(drain(pages).isEmpty());
        pages.release();
    }

    @Test
    void releasedMemoryIsAcquiredAgain() throws IOException {
        Budget budget = new Budget(2);
        PartitionPages pages = new PartitionPages(1, 4 * PartitionPages.PAGE_BYTES, budget);
        assertTrue(pages.append(0, new byte[10], BASE, 10));
        pages.release();
        assertEquals(2, budget.free);
        assertTrue(drain(pages).isEmpty());
        assertTrue(pages.append(0, new byte[20], BASE, 20));
        assertEquals(1, budget.free);
        assertEquals(20, drain(pages).get(0).length);
    }

    @Test
    void recordsOutsideTheHeapAreRead() throws IOException {
        long address = Platform.allocateMemory(1000);
        try {
            byte[] expected = new byte[1000];
            new Random(1).nextBytes(expected);
            Platform.copyMemory(expected, BASE, null, address, expected.length);
            PartitionPages pages = new PartitionPages(1, PartitionPages.PAGE_BYTES, new Budget(1));
            assertTrue(pages.append(0, null, address, expected.length));
            assertArrayEquals(expected, drain(pages).get(0));
        } finally {
            Platform.freeMemory(address);
        }
    }
}
