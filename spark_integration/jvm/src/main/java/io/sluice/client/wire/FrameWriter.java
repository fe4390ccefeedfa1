package io.sluice.client.wire;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.GatheringByteChannel;
import java.util.function.BooleanSupplier;

/** Buffers frames for the socket. Callers pass the method that waits for room. */
public final class FrameWriter {
    private static final int SEND_BYTES = 256 * 1024;

    /** Minimum size of payloads that are sent without a copy. */
    private static final int UNCOPIED_BYTES = 64 * 1024;

    /** Waits for the socket to take bytes; returns when {@code taken} holds. */
    public interface Room {
        void await(BooleanSupplier taken) throws IOException;
    }

    private final Endpoint endpoint;
    private final ByteBuffer out = ByteBuffer.allocateDirect(SEND_BYTES);
    private final ByteBuffer[] outAndPayload = {out, null};
    private final MessageEncoder encoder = new MessageEncoder();
    private Long pongNonce;
    private boolean insideFrame;

    public FrameWriter(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    /** Adds a message; waits for room if the buffer is full. */
    public void send(Message message, Room room) throws IOException {
        putHead(message, 0, room);
        insideFrame = false;
    }

    /**
     * Adds a message with its payload; returns when the caller may change {@code payload}.
     *
     * @param payload a direct buffer; its position is moved to its limit
     */
    public void send(Message message, ByteBuffer payload, Room room) throws IOException {
        putHead(message, payload.remaining(), room);
        if (payload.remaining() < UNCOPIED_BYTES) {
            put(payload, room);
        } else {
            outAndPayload[1] = payload;
            room.await(() -> !payload.hasRemaining());
            outAndPayload[1] = null;
        }
        insideFrame = false;
    }

    private void putHead(Message message, int payloadBytes, Room room) throws IOException {
        if (insideFrame) {
            throw new ClientException.ConnectionLost(
                    endpoint.toString(), "a frame was sent only in part", null);
        }
        byte[] control = encoder.encode(message);
        if (control.length > Frames.MAX_CONTROL_BYTES) {
            throw new ClientException.Protocol(
                    ErrorCode.FRAME_TOO_LARGE,
                    String.format(
                            "a message of %d bytes (limit %d): use fewer map tasks or partitions",
                            control.length, Frames.MAX_CONTROL_BYTES),
                    null);
        }
        if (out.remaining() < Frames.PREFIX_BYTES) {
            makeRoom(room);
        }
        insideFrame = true;
        out.putInt(control.length).putInt(payloadBytes);
        put(ByteBuffer.wrap(control), room);
    }

    private void put(ByteBuffer bytes, Room room) throws IOException {
        while (bytes.hasRemaining()) {
            if (!out.hasRemaining()) {
                makeRoom(room);
            }
            int n = Math.min(out.remaining(), bytes.remaining());
            out.put(out.position(), bytes, bytes.position(), n);
            out.position(out.position() + n);
            bytes.position(bytes.position() + n);
        }
    }

    private void makeRoom(Room room) throws IOException {
        room.await(() -> out.remaining() >= SEND_BYTES / 2);
    }

    private void putWhole(Message message) {
        byte[] control = encoder.encode(message);
        out.putInt(control.length).putInt(0).put(control);
    }

    /** Adds a small message if the buffer is empty; returns whether it did. */
    public boolean takeAlone(Message message) {
        if (insideFrame || !isEmpty()) {
            return false;
        }
        putWhole(message);
        return true;
    }

    /** Queues a Pong, which is sent before the next frame. */
    public void pong(long nonce) {
        pongNonce = nonce;
    }

    /** Returns whether the send buffer is empty. */
    public boolean isEmpty() {
        return out.position() == 0;
    }

    /** Returns whether there is anything for the socket to take. */
    public boolean isWanting() {
        return !isEmpty() || outAndPayload[1] != null;
    }

    /** Writes as much as the socket takes; returns whether it took anything. */
    public boolean writeTo(GatheringByteChannel socket) throws IOException {
        if (pongNonce != null && !insideFrame && out.remaining() >= 64) {
            putWhole(new Message.Pong(pongNonce));
            pongNonce = null;
        }
        if (!isWanting()) {
            return false;
        }
        out.flip();
        try {
            return (outAndPayload[1] != null ? socket.write(outAndPayload) : socket.write(out)) > 0;
        } finally {
            out.compact();
        }
    }
}
