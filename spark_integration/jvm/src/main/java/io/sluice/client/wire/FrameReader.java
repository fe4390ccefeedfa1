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
    private Message message;
    private Chunk payload;
    private int segmentBytes = Frames.MAX_EVENT_BYTES;
    private int maxPayloadBytes = Frames.MAX_EVENT_BYTES;

    public FrameReader(ChunkPool chunks) {
        this.chunks = chunks;
    }

    /** Sets the limits of the handshake: segment size and maximum payload. */
    public void allowPayload(int segmentBytes, int largestBytes) {
        this.segmentBytes = Math.max(segmentBytes, Frames.MAX_EVENT_BYTES);
        maxPayloadBytes = Math.max(largestBytes, this.segmentBytes);
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
                    if (!(message instanceof Message.BufferResponse)) {
                        throw new ClientException.Protocol(
                                ErrorCode.MALFORMED_MESSAGE,
                                "a payload came with a message that has none: " + message,
                                null);
                    }
                    payload =
                            chunks.take(
                                    payloadLength <= segmentBytes ? segmentBytes : maxPayloadBytes);
                }
            }
            if (payload != null) {
                payload.length += take(in, payload.bytes, payload.length, payloadLength);
                if (payload.length < payloadLength) {
                    return;
                }
            }
            complete(handler);
        }
    }

    /** Recycles the chunk of a frame that the end of the connection cut off. */
    public void discard() {
        if (payload != null) {
            chunks.recycle(payload);
            payload = null;
        }
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
        if (control.length < controlLength) {
            control = new byte[controlLength];
        }
    }

    private void complete(FrameHandler handler) throws IOException {
        Message whole = message;
        Chunk bytes = payload;
        message = null;
        payload = null;
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
