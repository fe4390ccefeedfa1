package io.sluice.spark.outputs;

import io.sluice.client.wire.Message;
import java.util.List;
import java.util.Map;

/** Hears of the TaskManagers of an application. Called by several threads. */
public interface TaskManagerEvents {
    /** Called when a connection to a TaskManager has been made. */
    void connected(Message.HelloAck taskManager);

    /** Called when there has been no connection to a TaskManager for a while. */
    void gone(String taskManagerId);

    /** Called when another TaskManager answers at the address of one that no link reaches. */
    void replaced(String taskManagerId);

    /** Returns the map outputs that a TaskManager should have, by shuffle. */
    Map<Integer, List<Long>> expected(String taskManagerId);

    /** Returns whether Spark knows a shuffle, so its map tasks may write it. */
    boolean isRegistered(int shuffleId);

    /** Called with map outputs that a TaskManager no longer has. */
    void lost(String taskManagerId, Message.OutputsLost outputs);

    /** Called with map outputs of which a TaskManager has copies. */
    void held(String taskManagerId, Message.OutputsHeld outputs);

    /** Called with map outputs of a TaskManager that are at another one from now on. */
    void moved(String taskManagerId, Message.OutputsMoved outputs);
}
