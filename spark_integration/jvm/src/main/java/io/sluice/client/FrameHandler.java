package io.sluice.client;

import java.io.IOException;

/**
 * Takes what arrives on a connection. Called on the thread that drives the connection; must not
 * send.
 */
interface FrameHandler {
    /** A message without payload. */
    void onMessage(Message message) throws IOException;

    /** A buffer of a channel; the handler owns the chunk from now on. */
    void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException;

    /** The end-of-partition event of a channel. */
    void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException;
}
