"""Leaders: ISR, high watermark, acknowledgements."""
