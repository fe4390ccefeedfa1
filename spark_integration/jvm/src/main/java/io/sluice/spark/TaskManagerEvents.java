package io.sluice.spark;

import io.sluice.client.Message;
import java.util.List;
import java.util.Map;

/** Hears of the TaskManagers of an application. Called by several threads. */
interface TaskManagerEvents {
    /** Called when a connection to a TaskManager has been made. */
    void connected(Message.HelloAck taskManager);

    /** Called when there has been no connection to a TaskManager for a while. */
    void gone(String taskManagerId);

    /** Called when another TaskManager is where a TaskManager was, and that is nowhere else. */
    void replaced(String taskManagerId);

    /** Returns the map outputs that a TaskManager should have, by shuffle. */
    Map<Integer, List<Long>> expected(String taskManagerId);

    /** Returns whether Spark knows a shuffle, so that it may be written. */
    boolean isRegistered(int shuffleId);

    /** Called with map outputs that a TaskManager does not have any more. */
    void lost(String taskManagerId, Message.OutputsLost outputs);

    /** Called with map outputs of which a TaskManager has copies. */
    void held(String taskManagerId, Message.OutputsHeld outputs);

    /** Called with map outputs of a TaskManager that are at another one from now on. */
    void moved(String taskManagerId, Message.OutputsMoved outputs);
}
