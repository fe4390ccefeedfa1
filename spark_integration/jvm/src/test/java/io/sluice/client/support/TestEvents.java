package io.sluice.client.support;

import java.io.IOException;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/** Event payloads for tests. */
public final class TestEvents {
    private TestEvents() {}

    public static byte[] endOfPartition(long bytes, long buffers) throws IOException {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(3).packInt(1).packLong(bytes).packLong(buffers);
            return packer.toByteArray();
        }
    }
}
