/** Connections to TaskManagers, each driven by the thread that uses it. */
package io.sluice.client.connection;
