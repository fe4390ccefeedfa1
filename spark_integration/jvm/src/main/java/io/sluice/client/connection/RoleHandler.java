package io.sluice.client.connection;

import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.FrameHandler;
import io.sluice.client.wire.Message;
import java.io.IOException;

/** Handles the messages of one role. Rejects data and events; consumers override this. */
public abstract class RoleHandler implements FrameHandler {
    private final String where;

    /**
     * @param where role in messages of errors, as in "on a driver connection"
     */
    public RoleHandler(String where) {
        this.where = where;
    }

    @Override
    public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
        throw unexpected("data " + where, response);
    }

    @Override
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event)
            throws IOException {
        throw unexpected("an event " + where, response);
    }

    public final ClientException.Protocol unexpected(Message message) {
        return unexpected(where, message);
    }

    private static ClientException.Protocol unexpected(String what, Message message) {
        return new ClientException.Protocol(
                ErrorCode.UNEXPECTED_MESSAGE, what + ": " + message, null);
    }
}
