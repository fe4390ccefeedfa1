/** Adds the tab "Sluice" to the UI of a running application. */
package io.sluice.spark.ui;
