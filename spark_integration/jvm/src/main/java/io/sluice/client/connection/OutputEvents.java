package io.sluice.client.connection;

import io.sluice.client.wire.Message;

/** Receives what a TaskManager reports to a driver; ignores it by default. */
public interface OutputEvents {
    /** Called with map outputs that the TaskManager has lost. */
    default void lost(Message.OutputsLost outputs) {}

    /** Called with map outputs of which the TaskManager has copies. */
    default void held(Message.OutputsHeld outputs) {}

    /** Called with map outputs that have a copy in the remote tier. */
    default void remote(Message.OutputsRemote outputs) {}

    /** Called with map outputs that have moved. The TaskManager removes them after the return. */
    default void moved(Message.OutputsMoved outputs) {}

    /** Called with a report about the TaskManager, or about one that it has reached. */
    default void member(Message.MemberReport report) {}
}
