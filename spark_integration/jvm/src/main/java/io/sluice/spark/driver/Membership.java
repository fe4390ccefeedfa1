package io.sluice.spark.driver;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;

/** Decides which TaskManagers the application uses. Called by several threads. */
interface Membership {
    /** All endpoints are configured. */
    Membership FIXED = new Membership() {};

    /** Returns whether an endpoint is configured, so that its link stays. */
    default boolean isConfigured(Endpoint endpoint) {
        return true;
    }

    /** Returns whether another TaskManager at the endpoint means that the previous one is lost. */
    default boolean isOfOne(Endpoint endpoint) {
        return true;
    }

    /** Returns why the TaskManager that answers at an endpoint must not be used; null if it may. */
    default String whyForeign(Endpoint endpoint, Message.HelloAck answer) {
        return null;
    }

    /** Called when an endpoint leads to a TaskManager that has another link. */
    default void isAlias(Endpoint endpoint, String taskManagerId) {}

    /**
     * Called with the report of a TaskManager. Must not wait.
     *
     * @param ofItself whether that TaskManager has sent it
     */
    default void reported(Message.MemberReport report, boolean ofItself) {}

    /** Called after a link was connected, lost or dropped. Must not wait. */
    default void changed(boolean isLoss) {}
}
