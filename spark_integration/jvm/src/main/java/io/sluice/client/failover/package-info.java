/** Retry deadlines, and replicas of map outputs on other TaskManagers. */
package io.sluice.client.failover;
