package io.sluice.client.wire;

import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * Splits the received bytes into frames. Payloads go straight into chunks of the pool, after both
 * lengths are checked.
 */
public final class FrameReader {
    /** The first bytes of an HTTP response, read as a length. */
    private static final int HTTP = 0x48545450;

    /** An alert of TLS: type, version and length, then two bytes. */
    private static final int TLS_ALERT_BYTES = 7;

    private static final byte[] TLS_ALERT = {21, 3};

    private final ChunkPool chunks;
    private final MessageDecoder decoder = new MessageDecoder();
    private final byte[] prefix = new byte[Frames.PREFIX_BYTES];
    private byte[] control = new byte[256];

    private int prefixHave;
    private int controlLength;
    private int controlHave;
    private int payloadLength;
    private int payloadHave;
    private Message message;

    /** The first and the last chunk of the payload that arrives, or null. */
    private Chunk payload;

    private Chunk filling;
    private int segmentBytes = Frames.MAX_EVENT_BYTES;
    private int maxPayloadBytes = Frames.MAX_EVENT_BYTES;

    public FrameReader(ChunkPool chunks) {
        this.chunks = chunks;
    }

    /** Sets the limits of the handshake: segment size and maximum payload. */
    public void allowPayload(int segmentBytes, int largestBytes) {
        this.segmentBytes =
                Math.min(Math.max(segmentBytes, Frames.MAX_EVENT_BYTES), Chunk.LARGE_BYTES);
        maxPayloadBytes = Math.max(largestBytes, segmentBytes);
    }

    /** Returns whether no frame is partly read. */
    public boolean atBorder() {
        return prefixHave == 0;
    }

    /** Returns whether the input is a TLS alert: the server requires TLS. */
    public boolean isTlsAlert() {
        return prefixHave == TLS_ALERT_BYTES
                && prefix[0] == TLS_ALERT[0]
                && prefix[1] == TLS_ALERT[1];
    }

    /** Consumes all bytes of {@code in} and passes complete frames to {@code handler}. */
    public void feed(ByteBuffer in, FrameHandler handler) throws IOException {
        while (in.hasRemaining()) {
            if (prefixHave < Frames.PREFIX_BYTES) {
                prefixHave += take(in, prefix, prefixHave, Frames.PREFIX_BYTES);
                if (prefixHave < Frames.PREFIX_BYTES) {
                    return;
                }
                begin();
            }
            if (controlHave < controlLength) {
                controlHave += take(in, control, controlHave, controlLength);
                if (controlHave < controlLength) {
                    return;
                }
                message = decoder.decode(control, controlLength);
                if (payloadLength > 0) {
                    if (!(message instanceof Message.BufferResponse buffer)) {
                        throw new ClientException.Protocol(
                                ErrorCode.MALFORMED_MESSAGE,
                                "a payload came with a message that has none: " + message,
                                null);
                    }
                    if (buffer.dataType() != Message.DATA
                            && payloadLength > Frames.MAX_EVENT_BYTES) {
                        throw tooLarge(
                                "payload of an event", payloadLength, Frames.MAX_EVENT_BYTES);
                    }
                    filling = payload = takeChunk();
                }
            }
            while (payloadHave < payloadLength) {
                if (!in.hasRemaining()) {
                    return;
                }
                if (filling.length == filling.bytes.length) {
                    filling = filling.next = takeChunk();
                }
                int wanted =
                        Math.min(
                                filling.bytes.length, filling.length + payloadLength - payloadHave);
                int n = take(in, filling.bytes, filling.length, wanted);
                filling.length += n;
                payloadHave += n;
            }
            complete(handler);
        }
    }

    /** Recycles the chunk of a frame that the end of the connection cut off. */
    public void discard() {
        if (payload != null) {
            chunks.recycle(payload);
            payload = null;
            filling = null;
        }
    }

    /** Takes a chunk for the rest of the payload, or as much of it as a large chunk holds. */
    private Chunk takeChunk() {
        return chunks.take(
                payloadLength - payloadHave <= segmentBytes ? segmentBytes : Chunk.LARGE_BYTES);
    }

    private void begin() throws ClientException.Protocol {
        controlLength = Blocks.getInt(prefix, 0);
        payloadLength = Blocks.getInt(prefix, 4);
        if (controlLength == HTTP) {
            throw new ClientException.Protocol(
                    ErrorCode.FRAME_TOO_LARGE,
                    "the answer is in HTTP: this is an HTTP port, write the TaskManager's data port"
                            + " (7337 by default)",
                    null);
        }
        if (controlLength < 1 || controlLength > Frames.MAX_CONTROL_BYTES) {
            throw tooLarge("control part", controlLength, Frames.MAX_CONTROL_BYTES);
        }
        if (payloadLength < 0 || payloadLength > maxPayloadBytes) {
            throw tooLarge("payload", payloadLength, maxPayloadBytes);
        }
        controlHave = 0;
        payloadHave = 0;
        if (control.length < controlLength) {
            control = new byte[controlLength];
        }
    }

    private void complete(FrameHandler handler) throws IOException {
        Message whole = message;
        Chunk bytes = payload;
        message = null;
        payload = null;
        filling = null;
        payloadLength = 0;
        payloadHave = 0;
        prefixHave = 0;
        controlHave = 0;
        controlLength = 0;
        if (!(whole instanceof Message.BufferResponse response)) {
            handler.onMessage(whole);
        } else if (bytes == null) {
            throw new ClientException.Protocol(
                    ErrorCode.MALFORMED_MESSAGE,
                    "a buffer came without its payload: " + response,
                    null);
        } else if (response.dataType() == Message.DATA) {
            handler.onBuffer(response, bytes);
        } else {
            Message.EndOfPartition event;
            try {
                event = decoder.decodeEvent(bytes.bytes, bytes.length);
            } finally {
                chunks.recycle(bytes);
            }
            handler.onEnd(response, event);
        }
    }

    private static int take(ByteBuffer in, byte[] into, int have, int wanted) {
        int n = Math.min(in.remaining(), wanted - have);
        in.get(into, have, n);
        return n;
    }

    private static ClientException.Protocol tooLarge(String part, int length, int limit) {
        return new ClientException.Protocol(
                ErrorCode.FRAME_TOO_LARGE,
                String.format(
                        "a frame announces a %s of %s bytes (limit %d). Check that a TaskManager,"
                                + " and not another server, listens there",
                        part, Integer.toUnsignedString(length), limit),
                null);
    }
}
