import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

generator = np.random.default_rng(0)
x = generator.normal(size=(400, 10)).astype("float32")
y = x.sum(axis=1, keepdims=True)
# the same weights in both programs
first, second = (
    generator.normal(size=(10, 32)) / 4,
    generator.normal(size=(32, 1)) / 4,
)

model = keras.Sequential(
    [keras.layers.Input((10,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
)
model.set_weights([first, np.zeros(32), second, np.zeros(1)])
model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss="mse")
history = model.fit(
    x[:320],
    y[:320],
    batch_size=32,
    epochs=5,
    shuffle=False,
    validation_data=(x[320:], y[320:]),
    callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=3),
        keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True),
    ],
)
print(f"eval loss {history.history['val_loss'][-1]:.6f}")
