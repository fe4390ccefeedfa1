/**
 * The client of a TaskManager: frames, messages, connections, map outputs and gates.
 *
 * <p>Nothing here knows Spark. A connection is driven by the thread that uses it; there are no
 * threads of its own.
 */
package io.sluice.client;
