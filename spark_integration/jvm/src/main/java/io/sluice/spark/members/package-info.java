/** Which TaskManagers there are: configured, resolved from names, and reported. */
package io.sluice.spark.members;
