"""Draw figures: functions that take numbers and return matplotlib figures, without computing anything."""
