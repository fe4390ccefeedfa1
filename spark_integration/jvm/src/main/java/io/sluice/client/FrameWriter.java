package io.sluice.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.GatheringByteChannel;
import java.util.function.BooleanSupplier;

/**
 * Joins frames in a buffer for the socket. It waits for nothing itself: who sends says how room
 * comes about.
 */
final class FrameWriter {
    private static final int SEND_BYTES = 256 * 1024;

    /**
     * Payloads from here on are written from where they are; smaller ones are joined in the send
     * buffer.
     */
    private static final int UNCOPIED_BYTES = 64 * 1024;

    /** Returns when {@code taken}: the socket has to take what is here. */
    interface Room {
        void await(BooleanSupplier taken) throws IOException;
    }

    private final Endpoint endpoint;
    private final ByteBuffer out = ByteBuffer.allocateDirect(SEND_BYTES);
    private final ByteBuffer[] outAndPayload = {out, null};
    private final MessageEncoder encoder = new MessageEncoder();
    private Long pongNonce;
    private boolean insideFrame;

    FrameWriter(Endpoint endpoint) {
        this.endpoint = endpoint;
    }

    /** Takes a message; asks for room when the buffer is full. */
    void send(Message message, Room room) throws IOException {
        putHead(message, 0, room);
        insideFrame = false;
    }

    /**
     * Takes a message with its payload; returns when the caller may change {@code payload}.
     *
     * @param payload a direct buffer; its position is moved to its limit
     */
    void send(Message message, ByteBuffer payload, Room room) throws IOException {
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
                    endpoint.toString(), "a frame on it was given up half way", null);
        }
        byte[] control = encoder.encode(message);
        if (control.length > Frames.MAX_CONTROL_BYTES) {
            throw new ClientException.Protocol(
                    ErrorCode.FRAME_TOO_LARGE,
                    "a message of "
                            + control.length
                            + " bytes (limit "
                            + Frames.MAX_CONTROL_BYTES
                            + "): use fewer map tasks or partitions",
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

    /**
     * Takes a small message if nothing else is here, not even a part of a frame; says whether it
     * did.
     */
    boolean takeAlone(Message message) {
        if (insideFrame || !isEmpty()) {
            return false;
        }
        putWhole(message);
        return true;
    }

    /** A Ping was read: its answer goes before the next write that is not inside of a frame. */
    void pong(long nonce) {
        pongNonce = nonce;
    }

    /** Whether the send buffer is empty. */
    boolean isEmpty() {
        return out.position() == 0;
    }

    /** Whether the socket has something to take. */
    boolean isWanting() {
        return !isEmpty() || outAndPayload[1] != null;
    }

    /** Writes what the socket takes now; says whether that was anything. */
    boolean writeTo(GatheringByteChannel socket) throws IOException {
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
