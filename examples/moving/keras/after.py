import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer
from loopwright.callbacks import BestModel, EarlyStopping

generator = np.random.default_rng(0)
x = generator.normal(size=(400, 10)).astype("float32")
y = x.sum(axis=1, keepdims=True)
# the same weights in both programs
first, second = (
    generator.normal(size=(10, 32)) / 4,
    generator.normal(size=(32, 1)) / 4,
)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
with torch.no_grad():
    for layer, weight in ((model[0], first), (model[2], second)):
        layer.weight.copy_(torch.from_numpy(weight.T))
        layer.bias.zero_()

trainer = Trainer(
    model,
    torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    nn.MSELoss(),
    callbacks=[EarlyStopping("eval_loss", patience=3), BestModel("eval_loss")],
    run_dir="runs/keras",
)
# `trainer.train((x[:320], y[:320]), ...)` shuffles, as `fit` does by default
in_order = DataLoader(
    TensorDataset(torch.from_numpy(x[:320]), torch.from_numpy(y[:320])), batch_size=32
)
history = trainer.train(in_order, num_epochs=5, eval_data=(x[320:], y[320:]))
print(f"eval loss {history['eval_loss'][-1]:.6f}")
