package io.sluice.client.support;

import io.sluice.client.wire.Message;
import io.sluice.client.wire.MessageDecoder;
import io.sluice.client.wire.MessageEncoder;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;

/** Frames for tests. */
public final class TestFrames {
    public record Received(Message message, byte[] payload) {}

    private TestFrames() {}

    public static byte[] frame(Message message, byte[] payload) {
        byte[] control = new MessageEncoder().encode(message);
        return ByteBuffer.allocate(8 + control.length + payload.length)
                .putInt(control.length)
                .putInt(payload.length)
                .put(control)
                .put(payload)
                .array();
    }

    public static byte[] frame(Message message) {
        return frame(message, new byte[0]);
    }

    public static Received read(DataInputStream in) throws IOException {
        byte[] control = new byte[in.readInt()];
        byte[] payload = new byte[in.readInt()];
        in.readFully(control);
        in.readFully(payload);
        return new Received(new MessageDecoder().decode(control, control.length), payload);
    }
}
