package io.sluice.spark.reader;

import io.sluice.spark.common.UnsafeRowFormat;
import io.sluice.spark.executor.TaskReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Field;
import java.nio.ByteOrder;
import java.util.NoSuchElementException;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import scala.Tuple2;
import scala.collection.AbstractIterator;

/**
 * Reads rows in {@link UnsafeRowFormat} in place: rows point into a buffer, which is filled in one
 * call. A larger row is read into an array of its size, which later large rows reuse.
 *
 * <p>Row and pair are the same objects every time, and a row is valid until the next one, as with
 * Spark's own streams. {@link #hasNext} does not overwrite the last row.
 */
final class UnsafeRowIterator extends AbstractIterator<Tuple2<Object, Object>> {
    static final int BUFFER_BYTES = 64 * 1024;

    private static final byte[] NOTHING = new byte[0];

    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);

    private final UnsafeRow row;
    private final Tuple2<Object, Object> pair;

    /** The current stream, or null. */
    private InputStream in;

    /** The unread bytes are from position to limit. Null before the first stream. */
    private byte[] buffer;

    private int position;
    private int limit;

    /** The buffer to fill while the last row is in the current one; may be null. */
    private byte[] spare;

    private boolean lastRowInBuffer;

    /** Memory for rows that are larger than a buffer. */
    private byte[] large = NOTHING;

    UnsafeRowIterator(int numFields) {
        this.row = new UnsafeRow(numFields);
        this.pair = new Tuple2<>(0, row);
    }

    /** Returns an iterator for the rows of a serializer; null if it is not supported. */
    static UnsafeRowIterator of(Serializer serializer) {
        Field numFields = UnsafeRowFormat.field(serializer, "numFields", int.class);
        // A length takes 4 bytes, and rows consist of words of 8.
        if (numFields == null || !Platform.unaligned()) {
            return null;
        }
        try {
            return new UnsafeRowIterator(numFields.getInt(serializer));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(
                    "the number of fields of " + serializer + " cannot be read", e);
        }
    }

    /** Continues with another stream, which is closed at its end. */
    void open(InputStream stream) {
        in = stream;
        if (buffer == null) {
            buffer = new byte[BUFFER_BYTES];
        }
    }

    @Override
    public boolean hasNext() {
        return limit - position >= Integer.BYTES || fill(Integer.BYTES);
    }

    @Override
    public Tuple2<Object, Object> next() {
        if (!hasNext()) {
            throw new NoSuchElementException("end of the rows");
        }
        lastRowInBuffer = false;
        int length = (int) INT.get(buffer, position);
        if (length < 0 || length > BUFFER_BYTES - Integer.BYTES) {
            readLarge(length);
            return pair;
        }
        if (length > limit - position - Integer.BYTES) {
            fill(Integer.BYTES + length);
        }
        int start = position + Integer.BYTES;
        row.pointTo(buffer, (long) Platform.BYTE_ARRAY_OFFSET + start, length);
        position = start + length;
        lastRowInBuffer = true;
        return pair;
    }

    /** Reads a row that is larger than the buffer. */
    private void readLarge(int length) {
        if (length < 0 || length > Integer.MAX_VALUE - BUFFER_BYTES) {
            throw TaskReader.taskFailure(
                    new IOException(
                            String.format(
                                    "a row of %d bytes in a shuffle's stream, which therefore does"
                                            + " not consist of rows",
                                    length)));
        }
        if (large.length < length) {
            // Lets the smaller one be collected before the larger one is allocated.
            large = NOTHING;
            row.pointTo(NOTHING, Platform.BYTE_ARRAY_OFFSET, 0);
            large = new byte[length];
        }
        position += Integer.BYTES;
        int have = limit - position;
        System.arraycopy(buffer, position, large, 0, have);
        position = 0;
        limit = 0;
        try {
            while (have < length) {
                int n = in.read(large, have, length - have);
                if (n < 0) {
                    throw endsInside(have, length);
                }
                have += n;
            }
        } catch (IOException e) {
            throw TaskReader.taskFailure(e);
        }
        row.pointTo(large, Platform.BYTE_ARRAY_OFFSET, length);
    }

    private static EOFException endsInside(int have, int wanted) {
        return new EOFException(
                "a shuffle's stream ends inside a row, after " + have + " of " + wanted + " bytes");
    }

    /**
     * Reads until the given number of bytes follow the position.
     *
     * @return false at the end of the stream
     */
    private boolean fill(int wanted) {
        if (in == null) {
            return false;
        }
        if (buffer.length - position < wanted) {
            makeRoom();
        }
        try {
            while (limit - position < wanted) {
                int n = in.read(buffer, limit, buffer.length - limit);
                if (n >= 0) {
                    limit += n;
                } else if (limit > position) {
                    throw endsInside(limit - position, wanted);
                } else {
                    in.close();
                    in = null;
                    return false;
                }
            }
        } catch (IOException e) {
            throw TaskReader.taskFailure(e);
        }
        return true;
    }

    /** Moves the unread bytes to the start of a buffer that does not contain the last row. */
    private void makeRoom() {
        byte[] from = buffer;
        int left = limit - position;
        if (lastRowInBuffer) {
            buffer = spare != null ? spare : new byte[BUFFER_BYTES];
            spare = from;
            lastRowInBuffer = false;
        }
        System.arraycopy(from, position, buffer, 0, left);
        position = 0;
        limit = left;
    }
}
