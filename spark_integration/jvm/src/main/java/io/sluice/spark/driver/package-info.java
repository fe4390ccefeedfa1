/** The driver's runtime and its connections to TaskManagers. */
package io.sluice.spark.driver;
