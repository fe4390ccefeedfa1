package io.sluice.spark.reader;

import io.sluice.spark.TaskReader;
import io.sluice.spark.UnsafeRowFormat;
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
 * Reads the rows of streams in {@link UnsafeRowFormat} in place, in a buffer.
 *
 * <p>Spark's own stream reads every byte of a length from a buffered stream, under its lock, and
 * copies each row. This class fills a buffer in one call, and rows point into it.
 *
 * <p>Row and pair are the same objects every time, and a row is valid until the next one is asked
 * for, as with Spark's own streams. {@link #hasNext} may have to read; it then fills another buffer
 * and leaves the buffer of the last row alone.
 */
final class UnsafeRowIterator extends AbstractIterator<Tuple2<Object, Object>> {
    static final int BUFFER_BYTES = 64 * 1024;

    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);

    private final UnsafeRow row;
    private final Tuple2<Object, Object> pair;

    /** Null if there is no stream, or it has ended. */
    private InputStream in;

    /** The unread bytes are from position to limit. */
    private byte[] buffer = new byte[BUFFER_BYTES];

    private int position;
    private int limit;

    /**
     * The buffer to fill next while the last row is in the current one; null if there is none yet.
     */
    private byte[] spare;

    private boolean lastRowInBuffer;

    UnsafeRowIterator(int numFields) {
        this.row = new UnsafeRow(numFields);
        this.pair = new Tuple2<>(0, row);
    }

    /** Returns an iterator for a serializer's rows, or null if they cannot be read in this way. */
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

    /** Continues with another stream, which is closed at its end. The previous one has ended. */
    void open(InputStream stream) {
        in = stream;
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
        // Not as a sum, which could overflow.
        if (length < 0 || length > limit - position - Integer.BYTES) {
            fillRow(length);
        }
        int start = position + Integer.BYTES;
        row.pointTo(buffer, (long) Platform.BYTE_ARRAY_OFFSET + start, length);
        position = start + length;
        lastRowInBuffer = true;
        return pair;
    }

    private void fillRow(int length) {
        if (length < 0 || length > Integer.MAX_VALUE - BUFFER_BYTES) {
            throw TaskReader.taskFailure(
                    new IOException(
                            "a row of "
                                    + length
                                    + " bytes in a shuffle's stream, which therefore does not"
                                    + " consist of rows"));
        }
        fill(Integer.BYTES + length);
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
            makeRoom(wanted);
        }
        try {
            while (limit - position < wanted) {
                int n = in.read(buffer, limit, buffer.length - limit);
                if (n >= 0) {
                    limit += n;
                } else if (limit > position) {
                    throw new EOFException(
                            "a shuffle's stream ends inside a row, after "
                                    + (limit - position)
                                    + " of "
                                    + wanted
                                    + " bytes");
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

    /**
     * Moves the unread bytes to the start of a buffer that holds the given number of bytes and does
     * not contain the last row.
     */
    private void makeRoom(int wanted) {
        byte[] from = buffer;
        int left = limit - position;
        if (lastRowInBuffer) {
            buffer = spare != null ? spare : new byte[BUFFER_BYTES];
            spare = from.length == BUFFER_BYTES ? from : null;
            lastRowInBuffer = false;
        }
        if (buffer.length < wanted) {
            buffer = new byte[wanted];
        }
        System.arraycopy(from, position, buffer, 0, left);
        position = 0;
        limit = left;
    }
}
