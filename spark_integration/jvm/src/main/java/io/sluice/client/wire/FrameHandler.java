package io.sluice.client.wire;

import java.io.IOException;

/** Handles received frames on the thread that drives the connection; must not send. */
public interface FrameHandler {
    /** Called for a message without payload. */
    void onMessage(Message message) throws IOException;

    /** Called for a buffer of a channel; the handler then owns the chunks. */
    void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException;

    /** Called for the end-of-partition event of a channel. */
    void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException;
}
