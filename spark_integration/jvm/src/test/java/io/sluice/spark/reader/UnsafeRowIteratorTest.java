package io.sluice.spark.reader;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.Reachable;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Random;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.junit.jupiter.api.Test;
import scala.Tuple2;

class UnsafeRowIteratorTest {
    private static final int NUM_FIELDS = 3;
    private static final int BUFFER = UnsafeRowIterator.BUFFER_BYTES;

    private final Random random = new Random(20261122);
    private final UnsafeRowIterator rows = new UnsafeRowIterator(NUM_FIELDS);

    /**
     * Returns a bounded number of bytes at a time, like a codec with its blocks, and remembers
     * whether it was closed.
     */
    private static class Trickle extends ByteArrayInputStream {
        private final int most;
        boolean closed;

        Trickle(byte[] bytes, int most) {
            super(bytes);
            this.most = most;
        }

        @Override
        public synchronized int read(byte[] into, int offset, int length) {
            assertTrue(length > 0, "a read of no bytes would never end");
            return super.read(into, offset, Math.min(length, most));
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    private byte[] row(int words) {
        byte[] bytes = new byte[8 * words];
        random.nextBytes(bytes);
        return bytes;
    }

    private static byte[] stored(List<byte[]> rows) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (byte[] row : rows) {
            out.writeInt(row.length);
            out.write(row);
        }
        return bytes.toByteArray();
    }

    private static byte[] bytesOf(Tuple2<Object, Object> pair) {
        assertEquals(0, pair._1());
        UnsafeRow row = (UnsafeRow) pair._2();
        assertEquals(NUM_FIELDS, row.numFields());
        byte[] bytes = new byte[row.getSizeInBytes()];
        Platform.copyMemory(
                row.getBaseObject(),
                row.getBaseOffset(),
                bytes,
                Platform.BYTE_ARRAY_OFFSET,
                bytes.length);
        return bytes;
    }

    /** Reads all rows; each must be unchanged after {@code hasNext}. */
    private void assertRead(List<byte[]> expected) {
        for (byte[] row : expected) {
            assertTrue(rows.hasNext());
            Tuple2<Object, Object> pair = rows.next();
            rows.hasNext();
            assertArrayEquals(row, bytesOf(pair));
        }
        assertFalse(rows.hasNext());
        assertThrows(NoSuchElementException.class, rows::next);
    }

    @Test
    void rowsAreReadAsTheyWereStored() throws IOException {
        int[] pieces = {
            1, 3, 4, 5, 64, 1000, 32 * 1024, BUFFER - 1, BUFFER, BUFFER + 1, Integer.MAX_VALUE
        };
        for (int most : pieces) {
            List<byte[]> stored = new ArrayList<>();
            for (int number = 0; number < 2000; number++) {
                stored.add(row(random.nextInt(number % 100 == 0 ? 2000 : 30)));
            }
            Trickle stream = new Trickle(stored(stored), most);
            rows.open(stream);
            assertRead(stored);
            assertTrue(stream.closed);
        }
    }

    @Test
    void aRowIsUnchangedWhereverTheBufferEnds() throws IOException {
        // The last row in the buffer ends the given number of bytes before the buffer does, and
        // another row follows.
        for (int left = 0; left <= 24; left += 4) {
            int first = (BUFFER - left - 2 * Integer.BYTES) / 8 * 8 - 800;
            List<byte[]> stored =
                    List.of(
                            row(first / 8),
                            row((BUFFER - left - 2 * Integer.BYTES - first) / 8),
                            row(5),
                            row(1));
            rows.open(new Trickle(stored(stored), Integer.MAX_VALUE));
            assertRead(stored);
        }
    }

    @Test
    void rowsMayBeLargerThanTheBuffer() throws IOException {
        List<byte[]> stored = new ArrayList<>();
        for (int words :
                new int[] {
                    1, BUFFER / 8, 0, BUFFER / 8 - 1, 3 * BUFFER / 8, 2, 50 * BUFFER / 8, 7, 9
                }) {
            stored.add(row(words));
        }
        rows.open(new Trickle(stored(stored), 30_000));
        assertRead(stored);
    }

    @Test
    void largeRowsShareMemoryOfTheSizeOfTheLargest() throws IOException {
        List<byte[]> stored = new ArrayList<>();
        for (int words : new int[] {9_000, 90_000, 3, 90_000, 50_000, 8_000, 90_001, 5, 70_000}) {
            stored.add(row(words));
        }
        byte[] bytes = stored(stored);
        rows.open(new Trickle(bytes, 30_000));
        int largest = 0;
        Object memory = null;
        for (byte[] row : stored) {
            Tuple2<Object, Object> pair = rows.next();
            assertArrayEquals(row, bytesOf(pair));
            Object base = ((UnsafeRow) pair._2()).getBaseObject();
            if (row.length > largest) {
                memory = base;
                largest = row.length;
            } else if (row.length > BUFFER) {
                assertTrue(memory == base, "a row of " + row.length + " has new memory");
            }
            rows.hasNext();
            long held = Reachable.from(rows).arrayBytes() - bytes.length;
            assertTrue(held <= largest + 2 * BUFFER, held + " bytes after " + largest);
        }
        assertFalse(rows.hasNext());
    }

    @Test
    void aLargeRowIsReadDirectlyIntoItsArray() throws IOException {
        byte[] row = row(50 * BUFFER / 8);
        List<byte[]> filled = new ArrayList<>();
        rows.open(
                new Trickle(stored(List.of(row, row)), Integer.MAX_VALUE) {
                    @Override
                    public synchronized int read(byte[] into, int offset, int length) {
                        filled.add(into);
                        return super.read(into, offset, length);
                    }
                });
        for (int number = 0; number < 2; number++) {
            filled.clear();
            UnsafeRow read = (UnsafeRow) rows.next()._2();
            assertSame(read.getBaseObject(), filled.get(filled.size() - 1));
            assertEquals(row.length, ((byte[]) read.getBaseObject()).length);
        }
    }

    @Test
    void streamsFollowEachOther() throws IOException {
        rows.open(new Trickle(new byte[0], 1));
        assertFalse(rows.hasNext());
        byte[] last = row(4);
        rows.open(new Trickle(stored(List.of(row(2), last)), 7));
        rows.next();
        Tuple2<Object, Object> pair = rows.next();
        assertFalse(rows.hasNext());
        rows.open(new Trickle(stored(List.of(row(4))), 7));
        assertTrue(rows.hasNext());
        assertArrayEquals(last, bytesOf(pair));
        assertSame(pair, rows.next());
        assertFalse(rows.hasNext());
    }

    @Test
    void aStreamThatEndsInsideARowFailsTheTask() throws IOException {
        byte[] whole = stored(List.of(row(3), row(5)));
        int first = 28;
        for (int length = 1; length < whole.length; length++) {
            if (length == first) {
                continue;
            }
            UnsafeRowIterator cut = new UnsafeRowIterator(NUM_FIELDS);
            cut.open(new Trickle(Arrays.copyOf(whole, length), 10));
            UncheckedIOException error =
                    assertThrows(
                            UncheckedIOException.class,
                            () -> {
                                while (cut.hasNext()) {
                                    cut.next();
                                }
                            });
            assertTrue(error.getCause() instanceof EOFException, error.toString());
        }
    }

    @Test
    void aNegativeOrHugeLengthFailsTheTask() {
        for (byte[] bytes : List.of(new byte[] {-1, 0, 0, 0, 1}, new byte[] {127, -1, -1, -1, 1})) {
            UnsafeRowIterator wrong = new UnsafeRowIterator(NUM_FIELDS);
            wrong.open(new Trickle(bytes, 10));
            UncheckedIOException error = assertThrows(UncheckedIOException.class, wrong::next);
            assertTrue(
                    error.getMessage().contains("bytes in a shuffle's stream"), error.toString());
        }
    }
}
