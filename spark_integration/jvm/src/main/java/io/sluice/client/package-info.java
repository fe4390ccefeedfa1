/**
 * The client of a TaskManager: frames, messages, connections, map outputs and gates.
 *
 * <p>Nothing here knows Spark. The thread that uses a connection drives it; only {@link
 * io.sluice.client.PipelinedPartition} has a thread of its own.
 */
package io.sluice.client;
