/** Gates, which read map outputs and pipelined partitions. */
package io.sluice.client.gate;
