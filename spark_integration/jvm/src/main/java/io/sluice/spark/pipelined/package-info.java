/** Writes and reads the pipelined shuffles of Spark 4.3 while both sides run. */
package io.sluice.spark.pipelined;
