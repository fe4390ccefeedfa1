/** Writes and reads the pipelined shuffles of Spark 4.3. */
package io.sluice.spark.pipelined;
