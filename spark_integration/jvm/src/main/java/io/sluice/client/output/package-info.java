/** Writers of map outputs and pipelined partitions. */
package io.sluice.client.output;
