package io.sluice.spark.outputs;

import io.sluice.client.wire.Message;
import java.util.List;
import java.util.Map;

/** Receives events of the TaskManagers of an application. Called by several threads. */
public interface TaskManagerEvents {
    /** Called after a TaskManager was connected. */
    void connected(Message.HelloAck taskManager);

    /** Called when a TaskManager has not returned in time. */
    void gone(String taskManagerId);

    /** Called when another TaskManager answers at the address of one that is not connected. */
    void replaced(String taskManagerId);

    /** Returns the map outputs that a TaskManager should have, by shuffle. */
    Map<Integer, List<Long>> expected(String taskManagerId);

    /** Returns whether Spark knows a shuffle. */
    boolean isRegistered(int shuffleId);

    /** Called with map outputs that a TaskManager no longer has. */
    void lost(String taskManagerId, Message.OutputsLost outputs);

    /** Called with map outputs of which a TaskManager has copies. */
    void held(String taskManagerId, Message.OutputsHeld outputs);

    /** Called with map outputs that have a copy in the remote tier. */
    void remote(Message.OutputsRemote outputs);

    /** Called with map outputs that have moved from a TaskManager to another one. */
    void moved(String taskManagerId, Message.OutputsMoved outputs);
}
