/** Classes that driver and executors share. */
package io.sluice.spark.common;
