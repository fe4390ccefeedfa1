/** The choice between Sluice and Spark's own shuffle for each new shuffle. */
package io.sluice.spark.registration;
